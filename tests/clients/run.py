#!/usr/bin/env python3
"""Runs the official Python clients of OpenAI, Anthropic and Ollama against `mambo serve` with the built-in model.

    cargo build --release
    python3 -m venv target/clients && target/clients/bin/pip install -r tests/clients/requirements.txt
    target/clients/bin/python tests/clients/run.py [PROGRAM]

The clients are used as their users do; nothing is told about mambo but the address.
"""

import json
import pathlib

import anthropic
import jsonschema
import ollama
import openai

from server import Server

ROOT = pathlib.Path(__file__).resolve().parents[2]
MODEL = "tiny-hybrid"
WEATHER = json.loads((ROOT / "tests/fixtures/text/weather-tool.json").read_text())
SUM = "What is 17 + 25?"
PARIS = "What is the weather in Paris?"


def openai_chat(client):
    answer = client.chat.completions.create(model=MODEL, temperature=0, reasoning_effort="high",
                                            messages=[{"role": "user", "content": SUM}])
    message = answer.choices[0].message
    assert "42" in message.content and message.reasoning_content, answer
    stream = client.chat.completions.create(model=MODEL, temperature=0, reasoning_effort="high", stream=True,
                                            stream_options={"include_usage": True},
                                            messages=[{"role": "user", "content": SUM}])
    chunks = list(stream)
    content = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
    assert content == message.content, (content, message.content)
    assert chunks[-1].usage.completion_tokens == answer.usage.completion_tokens
    assert chunks[-1].usage.prompt_tokens_details.cached_tokens > 0, "the same prompt was read twice"


def openai_tools(client):
    messages = [{"role": "user", "content": PARIS}]
    first = client.chat.completions.create(model=MODEL, temperature=0, reasoning_effort="none", tools=WEATHER,
                                           messages=messages)
    call = first.choices[0].message.tool_calls[0]
    assert call.function.name == "get_weather" and json.loads(call.function.arguments) == {"city": "Paris"}, first
    assert first.choices[0].finish_reason == "tool_calls"
    messages += [first.choices[0].message,
                 {"role": "tool", "tool_call_id": call.id, "content": '{"weather": "sunny", "celsius": 21}'}]
    second = client.chat.completions.create(model=MODEL, temperature=0, reasoning_effort="none", tools=WEATHER,
                                            messages=messages)
    assert second.choices[0].message.content, second
    for choice in ("required", {"type": "function", "function": {"name": "get_weather"}}):
        forced = client.chat.completions.create(model=MODEL, temperature=0, reasoning_effort="none", tools=WEATHER,
                                                tool_choice=choice, messages=[{"role": "user", "content": "Hello!"}])
        assert forced.choices[0].message.tool_calls[0].function.name == "get_weather", forced
    none = client.chat.completions.create(model=MODEL, temperature=0, reasoning_effort="none", tools=WEATHER,
                                          tool_choice="none", messages=[{"role": "user", "content": PARIS}])
    assert none.choices[0].message.tool_calls is None, none


def openai_structured(client):
    schema = {"type": "object", "properties": {"sum": {"type": "integer"}, "words": {"type": "array",
              "items": {"type": "string", "maxLength": 9}, "maxItems": 3}}, "required": ["sum", "words"],
              "additionalProperties": False}
    for effort in ("none", "high"):
        answer = client.chat.completions.create(
            model=MODEL, temperature=0, reasoning_effort=effort, max_tokens=600,
            response_format={"type": "json_schema", "json_schema": {"name": "sum", "schema": schema, "strict": True}},
            messages=[{"role": "user", "content": SUM}])
        jsonschema.validate(json.loads(answer.choices[0].message.content), schema)


def openai_logprobs(client):
    answer = client.chat.completions.create(model=MODEL, temperature=0, reasoning_effort="none", max_tokens=5,
                                            logprobs=True, top_logprobs=3, messages=[{"role": "user", "content": SUM}])
    tokens = answer.choices[0].logprobs.content
    assert len(tokens) == answer.usage.completion_tokens
    assert all(len(t.top_logprobs) == 3 and t.logprob == t.top_logprobs[0].logprob for t in tokens), tokens


def openai_several(client):
    answer = client.chat.completions.create(model=MODEL, temperature=1.2, seed=3, n=3, max_tokens=30,
                                            messages=[{"role": "user", "content": "Tell me a story."}])
    again = client.chat.completions.create(model=MODEL, temperature=1.2, seed=3, n=3, max_tokens=30,
                                           messages=[{"role": "user", "content": "Tell me a story."}])
    text = [c.message.content or c.message.reasoning_content for c in answer.choices]
    assert len(set(text)) > 1 and text == [c.message.content or c.message.reasoning_content for c in again.choices]
    completion = client.completions.create(model=MODEL, prompt="Once upon a time", max_tokens=6, temperature=0)
    assert completion.choices[0].text and completion.usage.completion_tokens == 6


def openai_responses(client):
    first = client.responses.create(model=MODEL, temperature=0, input=SUM, instructions="Be brief.",
                                    reasoning={"effort": "none"})
    assert "42" in first.output_text and first.status == "completed", first
    second = client.responses.create(model=MODEL, temperature=0, input="And what is 3 + 4?", instructions="Be brief.",
                                     reasoning={"effort": "none"}, previous_response_id=first.id)
    assert second.usage.input_tokens > first.usage.input_tokens
    assert second.usage.input_tokens_details.cached_tokens > 0, second.usage
    with client.responses.stream(model=MODEL, temperature=0, input=SUM, instructions="Be brief.",
                                 reasoning={"effort": "none"}) as stream:
        text = "".join(event.delta for event in stream if event.type == "response.output_text.delta")
        assert text == first.output_text and stream.get_final_response().output_text == text
    tool = {"type": "function", **WEATHER[0]["function"]}
    called = client.responses.create(model=MODEL, temperature=0, input=PARIS, tools=[tool],
                                     reasoning={"effort": "none"})
    call = next(item for item in called.output if item.type == "function_call")
    assert json.loads(call.arguments) == {"city": "Paris"}, called
    result = [{"type": "function_call_output", "call_id": call.call_id, "output": "Sunny."}]
    assert client.responses.create(model=MODEL, temperature=0, input=result, tools=[tool],
                                   reasoning={"effort": "none"}, previous_response_id=called.id).output


def openai_embeddings(client):
    texts = ["The cat sat on the mat.", "A dog barked."]
    # The client asks for base 64 by itself and decodes it.
    both = client.embeddings.create(model=MODEL, input=texts)
    plain = client.embeddings.create(model=MODEL, input=texts[1], encoding_format="float")
    assert both.data[1].embedding == plain.data[0].embedding and both.data[1].index == 1
    assert abs(sum(value * value for value in plain.data[0].embedding) - 1) < 1e-5
    assert both.usage.prompt_tokens > plain.usage.prompt_tokens == plain.usage.total_tokens
    assert len(client.embeddings.create(model=MODEL, input=[[5, 6], [7]], dimensions=8).data[1].embedding) == 8
    for wrong in ({"input": ""}, {"dimensions": 1 << 20}):
        try:
            client.embeddings.create(**{"model": MODEL, "input": "hi", **wrong})
            raise AssertionError(f"{wrong} was taken")
        except openai.BadRequestError as error:
            assert list(wrong)[0] in str(error), error


def openai_errors(client):
    for wrong in ({"model": "other"}, {"temperature": -1}, {"tool_choice": "required"}):
        try:
            client.chat.completions.create(**{"model": MODEL, "messages": [{"role": "user", "content": "hi"}], **wrong})
            raise AssertionError(f"{wrong} was taken")
        except (openai.BadRequestError, openai.NotFoundError) as error:
            assert list(wrong)[0] in str(error), error
    assert client.models.list().data[0].id == MODEL


def anthropic_all(client):
    answer = client.messages.create(model=MODEL, max_tokens=400, extra_body={"temperature": 0}, system="Be brief.",
                                    messages=[{"role": "user", "content": SUM}])
    text = next(block.text for block in answer.content if block.type == "text")
    assert "42" in text and answer.stop_reason == "end_turn", answer
    with client.messages.stream(model=MODEL, max_tokens=400, extra_body={"temperature": 0}, system="Be brief.",
                                messages=[{"role": "user", "content": SUM}]) as stream:
        assert "".join(stream.text_stream) == text
        assert stream.get_final_message().usage.output_tokens == answer.usage.output_tokens
    tool = {"name": "get_weather", "description": "Get the weather in a city.",
            "input_schema": WEATHER[0]["function"]["parameters"]}
    asked = [{"role": "user", "content": PARIS}]
    called = client.messages.create(model=MODEL, max_tokens=400, extra_body={"temperature": 0}, tools=[tool], messages=asked,
                                    thinking={"type": "disabled"})
    use = next(block for block in called.content if block.type == "tool_use")
    assert use.input == {"city": "Paris"} and called.stop_reason == "tool_use", called
    asked += [{"role": "assistant", "content": called.content},
              {"role": "user", "content": [{"type": "tool_result", "tool_use_id": use.id, "content": "Sunny."}]}]
    assert client.messages.create(model=MODEL, max_tokens=400, extra_body={"temperature": 0}, tools=[tool], messages=asked,
                                  thinking={"type": "disabled"}).content
    assert client.messages.count_tokens(model=MODEL, messages=[{"role": "user", "content": SUM}]).input_tokens > 5
    try:
        client.messages.create(model="other", max_tokens=4, messages=[{"role": "user", "content": "hi"}])
        raise AssertionError("another model was taken")
    except anthropic.NotFoundError as error:
        assert MODEL in str(error)


def ollama_all(client):
    asked = [{"role": "user", "content": SUM}]
    answer = client.chat(model=MODEL, messages=asked, options={"temperature": 0}, think=True)
    assert "42" in answer.message.content and answer.message.thinking, answer
    pieces = list(client.chat(model=MODEL, messages=asked, options={"temperature": 0}, think=True, stream=True))
    assert "".join(p.message.content or "" for p in pieces) == answer.message.content and pieces[-1].done
    called = client.chat(model=MODEL, messages=[{"role": "user", "content": PARIS}], tools=WEATHER, think=False,
                         options={"temperature": 0})
    assert called.message.tool_calls[0].function.arguments == {"city": "Paris"}, called
    schema = {"type": "object", "required": ["sum"],
              "properties": {"sum": {"type": "integer", "minimum": 0, "maximum": 999}},
              "additionalProperties": False}
    formed = client.chat(model=MODEL, messages=asked, format=schema, think=False, options={"temperature": 0})
    jsonschema.validate(json.loads(formed.message.content), schema)
    text = client.generate(model=MODEL, prompt=SUM, think=False, options={"temperature": 0, "num_predict": 50})
    assert "42" in text.response and text.eval_count > 0, text
    embedded = client.embed(model=MODEL, input=["The cat sat on the mat.", "A dog barked."])
    assert len(embedded.embeddings) == 2 and embedded.prompt_eval_count > 5, embedded
    old = client.embeddings(model=MODEL, prompt="A dog barked.")
    assert list(old.embedding) == list(embedded.embeddings[1])
    assert client.list().models[0].model == MODEL
    assert client.show(MODEL).template


def main():
    with Server() as server:
        first = openai.OpenAI(base_url=f"{server.address}/v1", api_key="none", max_retries=0)
        second = anthropic.Anthropic(base_url=server.address, api_key="none", max_retries=0)
        third = ollama.Client(host=server.address)
        for client, tests in ((first, (openai_chat, openai_tools, openai_structured, openai_logprobs, openai_several,
                                       openai_responses, openai_embeddings, openai_errors)), (second, (anthropic_all,)), (third, (ollama_all,))):
            for test in tests:
                test(client)
                print(f"ok {test.__name__}", flush=True)


if __name__ == "__main__":
    main()
