"""A text that calls a function: its arguments fit their schema. Start a worker and a grammar service first."""

import json
import sys

from shared.client import Client


def weather(city: str, unit: str = "celsius") -> str:
    return f"18 degrees {unit} in {city}"


PARAMETERS = {
    "type": "object",
    "properties": {"city": {"type": "string", "maxLength": 12}, "unit": {"enum": ["celsius", "fahrenheit"]}},
    "required": ["city"],
    "additionalProperties": False,
}
TOOLS = [{"type": "function", "function": {"name": "weather", "description": "Weather now", "parameters": PARAMETERS}}]

with Client(sys.argv[1] if len(sys.argv) > 1 else "tcp://127.0.0.1:5555") as client:
    messages = [{"role": "user", "content": "How warm is it in Paris?"}]
    asked = {"tools": TOOLS, "tool_choice": "required", "parallel_tool_calls": False}
    result = client.generate(messages=messages, max_tokens=120, temperature=0.5, seed=7, verify=True, **asked)
    for call in result.tool_calls:
        print(f"{call.name}({call.arguments}) = {weather(**json.loads(call.arguments))}")
    print(f"valid: {result.valid}")
