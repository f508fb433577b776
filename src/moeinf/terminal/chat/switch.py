"""The model of a chat, and its replacement by another one."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from moeinf.config import RuntimeConfig
from moeinf.engine.stored.preset import preset_of
from moeinf.errors import MoeinfError
from moeinf.store.library import Library
from moeinf.terminal.conversation_loop import Conversation

if TYPE_CHECKING:
    from moeinf.engine.model import Model


class ModelSwitch:
    """Gives a conversation another model, or the same one with another configuration."""

    def __init__(
        self,
        conversation: Conversation,
        config: RuntimeConfig,
        library: Library,
        open_model: Callable[[str, RuntimeConfig], Model],
    ) -> None:
        """config: of the model that is open now; open_model(name, config) opens one of the library."""
        self.config = config
        self.library = library
        self._conversation = conversation
        self._open_model = open_model

    def change(self, name: str, config: RuntimeConfig) -> None:
        """Closes the model before it opens the other one, as two seldom fit side by side.

        Where that fails, the old one is opened again, and the MoeinfError is raised.
        """
        old = self._conversation.model.name
        self._conversation.model.close()
        try:
            model = self._open_model(name, config)
        except MoeinfError:
            self._conversation.use(self._open_model(old, self.config))
            raise
        self.config = config
        if name != old:  # else what was made of it once stays
            self._conversation.preset = preset_of(self.library.find(name))
        self._conversation.use(model)
