"""Games that programs outside play: where they come to take one."""

from typing import Any, Self

from pydantic import Field, model_validator

from unstable.config.base import Port, Section, shown
from unstable.config.endpoint import is_loopback


class ListenConfig(Section):
    """Where programs that play games themselves (games.N.env: driver) take them."""

    host: str = Field("127.0.0.1", description="address that is listened at")
    port: Port = Field(
        0,
        description="port at which games are taken, whichever actor has them; 0: none, for games "
        "whose drivers the run starts itself (games.N.env: driver:module:Class)",
    )
    seats_port: Port = Field(
        0,
        description="port of the seats of the first actor's games, each further actor has the "
        "next; 0: those that follow listen.port",
    )
    token_env: str | None = Field(
        None,
        description="the environment variable that holds the token which programs must send; "
        "default: none is asked for",
    )

    @model_validator(mode="before")
    @classmethod
    def _of_port(cls, value: Any) -> Any:
        """A number alone is the port."""
        return {"port": value} if isinstance(value, int) else value

    @model_validator(mode="after")
    def _closed_or_near(self) -> Self:
        if not is_loopback(self.host) and self.token_env is None:
            raise ValueError(
                f"host = {shown(self.host)}: others may reach it; set token_env to the environment "
                "variable that holds a token"
            )
        return self
