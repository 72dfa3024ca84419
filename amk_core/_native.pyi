"""The extension module (amk_core/native); its functions are typed where they are wrapped."""

from typing import Any

def __getattr__(name: str) -> Any: ...
