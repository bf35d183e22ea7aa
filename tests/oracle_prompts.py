"""Fifty beginnings of texts, cut to one length in tokens: another implementation takes them as one batch without padding."""

NUM_TOKENS = 5
TEXTS = (
    "The capital of France is the city",
    "Once upon a time there was a",
    "def add(a, b):\n    return a",
    "1, 2, 3, 4, 5, 6, 7,",
    "Dear Sir or Madam, I am writing",
    "Water boils at one hundred degrees",
    "the the the the the the the",
    "A list of fruits: apple, apple,",
    "My favourite colour is blue because",
    "In the beginning there was nothing but",
    "The quick brown fox jumps over the",
    "To be or not to be, that",
    "Roses are red, violets are blue,",
    "He opened the door and saw a",
    "She sells sea shells by the sea",
    "The meaning of life is to find",
    "import numpy as np\nimport pandas",
    "for i in range(10):\n    print",
    "SELECT name FROM users WHERE age",
    "<html><head><title>Page</title>",
    "Q: What is two plus two? A:",
    "The president of the United States was",
    "Yesterday I went to the market and",
    "Ingredients: flour, sugar, butter, eggs",
    "The train leaves at seven in the",
    "If it rains tomorrow we will stay",
    "Mathematics is the study of numbers and",
    "A cat and a dog were friends",
    "Breaking news: scientists have found that",
    "The weather today is sunny and warm",
    "My name is John and I am",
    "He said that he would never go",
    "There are seven days in a week",
    "The first step is to open the",
    "On the table there was a small",
    "It was the best of times, it",
    "Copyright 2020 by the authors. All",
    "Thank you very much for your kind",
    "The human heart has four chambers and",
    "Mount Everest is the highest mountain in",
    "A triangle has three sides and three",
    "The war ended in the year 1945",
    "Please read the following text with care",
    "The recipe calls for two cups of",
    "When I was a child I used",
    "Python is a programming language that is",
    "The sun rises in the east and",
    "Every morning she drinks a cup of",
    "The teacher asked the students to write",
    "Good evening ladies and gentlemen, welcome to",
)


def prompts_of(encode, count=50):
    """The first ``count`` as lists of NUM_TOKENS ids."""
    found = [encode(text)[:NUM_TOKENS] for text in TEXTS[:count]]
    if any(len(prompt) < NUM_TOKENS for prompt in found):
        raise ValueError(f"a text has fewer than {NUM_TOKENS} tokens")
    return found
