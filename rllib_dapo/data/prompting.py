"""The prompt renderer that a configuration describes."""

from __future__ import annotations

from rllib_dapo.data.prompts import PromptRenderer
from rllib_dapo.model.facts import load_tokenizer, model_facts
from rllib_dapo.settings.general import DAPOSettings


def make_renderer(config: DAPOSettings) -> PromptRenderer:
    """The prompt renderer that a configuration describes."""
    facts = model_facts(config.language_model, trust_remote_code=config.trust_remote_code)
    return PromptRenderer(
        load_tokenizer(facts.path, trust_remote_code=config.trust_remote_code),
        template=config.prompt_template,
        system=config.system_prompt,
        few_shot=config.few_shot,
        chat=config.chat,
        max_prompt_length=config.max_prompt_length,
    )
