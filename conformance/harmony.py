"""A chat template in the manner of gpt-oss, whose own no package registry carries.

Wording and layout are this project's; the control tokens are those of gpt-oss's vocabulary. It
uses what that kind of template uses: macros that call themselves, namespaces, the date, JSON
schemas as TypeScript, channels, reasoning in a field of its own.
"""

TEMPLATE = """\
{%- macro type_of(schema) -%}
    {%- if schema.enum -%}
        {{- schema.enum | map('tojson') | join(' | ') -}}
    {%- elif schema.type == 'array' -%}
        {{- type_of(schema['items'] or {}) + '[]' -}}
    {%- elif schema.type == 'object' and schema.properties -%}
        {{- '{' -}}
        {%- for name, inner in schema.properties.items() -%}
            {{- name -}}
            {%- if name not in (schema.required or []) %}?{% endif -%}
            {{- ': ' + type_of(inner) -}}
            {%- if not loop.last %}, {% endif -%}
        {%- endfor -%}
        {{- '}' -}}
    {%- elif schema.type in ('integer', 'number') -%}
        number
    {%- else -%}
        {{- schema.type or 'any' -}}
    {%- endif -%}
{%- endmacro -%}

{%- macro text_of(content) -%}
    {%- if content is string -%}
        {{- content -}}
    {%- elif content is mapping -%}
        {{- content | tojson -}}
    {%- else -%}
        {%- for part in content -%}
            {%- if part.type != 'text' %}{% continue %}{% endif -%}
            {{- part.text -}}
        {%- endfor -%}
    {%- endif -%}
{%- endmacro -%}

{%- set ns = namespace(last_call=none, rules='') -%}
{%- set talk = messages -%}
{%- if messages[0].role in ('developer', 'system') -%}
    {%- set ns.rules = text_of(messages[0].content) -%}
    {%- set talk = messages[1:] -%}
{%- endif -%}

<|start|>system<|message|>
{{- 'You answer in channels.\\nToday: ' + strftime_now('%Y-%m') }}
Effort: {{ reasoning_effort | default('medium') }}
{%- if tools %}
Calls go to: commentary
{%- endif -%}
<|end|>
{%- if ns.rules or tools -%}
    {{- '<|start|>developer<|message|>' -}}
    {%- if ns.rules %}{{ '# Rules\\n\\n' + ns.rules }}{% endif -%}
    {%- if tools %}
        {{- '\\n\\n# Functions\\n' -}}
        {%- for tool in tools | map(attribute='function') %}
// {{ tool.description }}
type {{ tool.name }} = (_: {{ type_of(tool.parameters or {}) }}) => any;
        {%- endfor -%}
    {%- endif -%}
    {{- '<|end|>' -}}
{%- endif -%}

{%- for message in talk -%}
    {%- if message.role == 'assistant' -%}
        {%- if message.thinking and not message.content -%}
            {{- '<|start|>assistant<|channel|>analysis<|message|>' + message.thinking + '<|end|>' -}}
        {%- endif -%}
        {%- for call in message.tool_calls or [] -%}
            {%- set call = call.function or call -%}
            {%- set ns.last_call = call.name -%}
            {{- '<|start|>assistant to=functions.' ~ call.name -}}
            {{- '<|channel|>commentary <|constrain|>json<|message|>' -}}
            {{- call.arguments if call.arguments is string else call.arguments | tojson -}}
            {{- '<|call|>' -}}
        {%- else -%}
            {{- '<|start|>assistant<|channel|>final<|message|>' -}}
            {%- generation -%}
            {{- text_of(message.content) + ('<|return|>' if loop is defined and loop.last else '<|end|>') -}}
            {%- endgeneration -%}
        {%- endfor -%}
    {%- elif message.role == 'tool' -%}
        {%- if ns.last_call is none -%}
            {{- raise_exception('a result without a call') -}}
        {%- endif -%}
        {{- '<|start|>functions.' ~ ns.last_call ~ ' to=assistant<|channel|>commentary<|message|>' -}}
        {{- text_of(message.content) + '<|end|>' -}}
    {%- elif message.role == 'user' -%}
        {{- '<|start|>user<|message|>' + text_of(message.content) + '<|end|>' -}}
    {%- else -%}
        {{- raise_exception('no such role: ' ~ message.role) -}}
    {%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt %}<|start|>assistant{% endif -%}
"""
