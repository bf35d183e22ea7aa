"""Token bytes, special and stop ids of tokenizer files; every file is one that the tokenizer library itself wrote."""

import importlib.util
import json
from pathlib import Path
from typing import Any

import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

from gpu_worker.models.token_bytes import byte_alphabet, from_byte_level, from_sentencepiece
from gpu_worker.models.vocabulary import (
    invented_vocabulary,
    load_vocabulary,
    vocabulary_of_tiktoken,
    vocabulary_of_tokenizer,
)
from shared.errors import ConfigError
from tests.vocabularies import QWEN_WIDTH, qwen

TEXT = 'naïve 日本語 \U0001f600 tab\tline\nquote" back\\slash  two  spaces \x00\x7f end'


def byte_level(folder: Path) -> Tokenizer:
    """A trained byte-level BPE with a special and a plain added token, saved in ``folder``."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(vocab_size=400, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False)
    tokenizer.train_from_iterator([TEXT] * 3, trainer)
    tokenizer.add_special_tokens([AddedToken("<|end|>", special=True), AddedToken("<|stop|>", special=True)])
    tokenizer.add_tokens([AddedToken("<think é>", special=False)])
    folder.mkdir(exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    return tokenizer


def write(folder: Path, name: str, value: Any) -> None:
    (folder / name).write_text(json.dumps(value))


def model_folder(folder: Path) -> Tokenizer:
    tokenizer = byte_level(folder)
    end, stop = tokenizer.token_to_id("<|end|>"), tokenizer.token_to_id("<|stop|>")
    write(folder, "config.json", {"vocab_size": 512, "eos_token_id": end})
    write(folder, "generation_config.json", {"eos_token_id": [end, stop]})
    write(folder, "tokenizer_config.json", {"eos_token": {"content": "<think é>"}})
    return tokenizer


def test_the_byte_alphabet_has_every_byte_once() -> None:
    assert sorted(byte_alphabet().values()) == list(range(256))
    assert set(byte_alphabet()) == set(pre_tokenizers.ByteLevel.alphabet())


def test_bytes_of_a_byte_level_tokenizer_join_to_the_text(tmp_path: Path) -> None:
    tokenizer = model_folder(tmp_path)
    vocabulary = load_vocabulary(tmp_path)
    ids = tokenizer.encode(TEXT + "<think é>").ids
    assert b"".join(vocabulary.token_bytes[i] for i in ids) == (TEXT + "<think é>").encode()
    assert {bytes([i]) for i in range(256)} <= set(vocabulary.token_bytes)


def test_width_special_ids_and_the_union_of_stop_ids(tmp_path: Path) -> None:
    tokenizer = model_folder(tmp_path)
    vocabulary = load_vocabulary(tmp_path)
    end, stop, think = (tokenizer.token_to_id(text) for text in ("<|end|>", "<|stop|>", "<think é>"))
    assert vocabulary.size == 512
    assert vocabulary.token_bytes[tokenizer.get_vocab_size() :] == [b""] * (512 - tokenizer.get_vocab_size())
    assert vocabulary.special_ids == sorted([end, stop])
    assert vocabulary.stop_ids == sorted([end, stop, think])
    assert vocabulary.token_bytes[end] == b"<|end|>"
    assert vocabulary.definition_kind == "huggingface"
    assert json.loads(vocabulary.definition)["model"]["type"] == "BPE"
    vocabulary.check()


def test_sentencepiece_marks() -> None:
    assert from_sentencepiece("\u2581a\u2581b") == b" a b"
    assert from_sentencepiece("<0x0A>") == b"\n"
    assert from_sentencepiece("<0xE6>") == b"\xe6"
    assert from_sentencepiece("<0xE6>x") == b"<0xE6>x"
    assert from_byte_level("\u0120a") == b" a"
    assert from_byte_level("\u2581") == b"\xe2\x96\x81"


def test_a_byte_fallback_tokenizer_is_read_by_its_decoder(tmp_path: Path) -> None:
    vocab = {f"<0x{i:02X}>": i for i in range(256)} | {"\u2581hi": 256, "</s>": 257}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=[], byte_fallback=True))
    tokenizer.decoder = decoders.Sequence([decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse()])
    tokenizer.add_special_tokens([AddedToken("</s>", special=True)])
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    write(tmp_path, "tokenizer_config.json", {"eos_token": "</s>"})
    vocabulary = vocabulary_of_tokenizer(tmp_path / "tokenizer.json")
    assert vocabulary.token_bytes == [*(bytes([i]) for i in range(256)), b" hi", b"</s>"]
    assert (vocabulary.special_ids, vocabulary.stop_ids) == ([257], [257])


@pytest.mark.parametrize(
    ("name", "value", "reason"),
    [
        ("config.json", {"vocab_size": 300}, "300 wide"),
        ("config.json", {"vocab_size": "many"}, "vocab_size has value 'many'"),
        ("config.json", [1], "holds list"),
        ("tokenizer.json", {"model": {"vocab": []}}, "model.vocab"),
        ("tokenizer.json", {"model": {"vocab": {"a": 0}}, "decoder": {"type": "WordPiece"}}, "decoder is WordPiece"),
        ("generation_config.json", {"eos_token_id": [9999]}, "out of range"),
    ],
)
def test_a_wrong_file_is_named_with_the_reason(tmp_path: Path, name: str, value: Any, reason: str) -> None:
    model_folder(tmp_path)
    write(tmp_path, name, value)
    with pytest.raises(ConfigError, match=reason) as caught:
        load_vocabulary(tmp_path)
    assert str(tmp_path) in str(caught.value)


def test_a_missing_or_broken_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"config\.json cannot be read"):
        load_vocabulary(tmp_path)
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(ConfigError, match="is not JSON"):
        load_vocabulary(tmp_path)


def test_no_stop_token_is_an_error(tmp_path: Path) -> None:
    byte_level(tmp_path)
    with pytest.raises(ConfigError, match="no stop token"):
        vocabulary_of_tokenizer(tmp_path / "tokenizer.json")


def test_a_rank_file(tmp_path: Path) -> None:
    file = tmp_path / "small.tiktoken"
    file.write_text("YQ== 0\nYg== 1\nYWI= 2\n")
    vocabulary = vocabulary_of_tiktoken(file, 8)
    assert vocabulary.token_bytes[:3] == [b"a", b"b", b"ab"]
    assert (vocabulary.size, vocabulary.special_ids, vocabulary.stop_ids) == (8, [3, 4, 5], [3, 5])
    with pytest.raises(ConfigError, match="4 wide"):
        vocabulary_of_tiktoken(file, 4)
    file.write_text("?? 0\n")
    with pytest.raises(ConfigError, match=r"small\.tiktoken"):
        vocabulary_of_tiktoken(file)


def test_a_rank_file_of_151_643_tokens() -> None:
    spec = importlib.util.find_spec("dashscope")
    assert spec is not None
    assert spec.submodule_search_locations
    file = Path(spec.submodule_search_locations[0]) / "resources" / "qwen.tiktoken"
    assert vocabulary_of_tiktoken(file, QWEN_WIDTH) == qwen()


def test_an_invented_vocabulary_has_all_bytes_and_no_token_twice() -> None:
    vocabulary = invented_vocabulary(20_000)
    assert vocabulary.size == 20_000 == len(set(vocabulary.token_bytes))
    assert vocabulary.token_bytes[65] == b"A"
    assert vocabulary.token_bytes[vocabulary.stop_ids[0]] == b"<|end|>"
    with pytest.raises(ConfigError, match="256 tokens"):
        invented_vocabulary(256)
