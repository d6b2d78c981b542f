"""Instructor: objects by a tool and by a schema, whole and in parts."""

import instructor
import openai
from asked import MODEL, ORDER, URL, Villager, report

found = []
for mode in (instructor.Mode.TOOLS, instructor.Mode.TOOLS_STRICT, instructor.Mode.JSON_SCHEMA):
    client = instructor.from_openai(openai.OpenAI(base_url=URL, api_key="any", max_retries=0), mode=mode)
    asked = {"model": MODEL, "temperature": 0, "messages": [{"role": "user", "content": ORDER}], "max_retries": 1}
    found.append(client.create(response_model=Villager, **asked).model_dump())
    *_, last = client.create_partial(response_model=Villager, **asked)
    found.append(last.model_dump())
report(villagers=found)
