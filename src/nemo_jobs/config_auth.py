"""Section `auth` of the settings: who may call, and whose access tokens are believed."""

from typing import Annotated, Literal
from urllib.parse import urlsplit

from pydantic import AfterValidator, Field, model_validator
from pydantic_core import PydanticCustomError

from nemo_jobs.domain.addresses import is_loopback
from nemo_jobs.domain.names import NAME_RULE, is_name
from nemo_jobs.domain.profile_base import Limit, Seconds, Section

Algorithm = Literal["RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA"]
_ALGORITHMS: tuple[Algorithm, ...] = ("RS256", "PS256", "ES256", "EdDSA")
Nonempty = Annotated[str, Field(min_length=1)]


def is_trusted_url(url: str) -> bool:
    """Whether what comes from this address can't be another's: https, or this machine."""
    try:
        parts = urlsplit(url)
        return bool(parts.hostname) and (
            parts.scheme == "https" or (parts.scheme == "http" and is_loopback(parts.hostname or ""))
        )
    except ValueError:
        return False


def _issuer(text: str) -> str:
    if not is_trusted_url(text) or urlsplit(text).query or urlsplit(text).fragment:
        raise PydanticCustomError("url", "must be an https:// address (http:// only on this machine)")
    return text


def _workspace(text: str) -> str:
    if text != "*" and not is_name(text):
        raise PydanticCustomError(
            "workspace", "must be * or a workspace; a name has {rule}", {"rule": NAME_RULE}
        )
    return text


class OidcGrant(Section):
    """What a claim of an access token gives."""

    claim: Nonempty = Field(
        default="groups", description="name of the claim, or a path such as `realm_access.roles`"
    )
    value: Nonempty = Field(description="what the claim must be or hold; `*`: anything")
    workspaces: Annotated[list[Annotated[str, AfterValidator(_workspace)]], Field(min_length=1)] = Field(
        description="where the scopes hold; `*`: everywhere"
    )
    scopes: Annotated[list[Literal["read", "write", "admin", "service"]], Field(min_length=1)] = Field(
        description="any of `read`, `write`, `admin`, `service`"
    )


class OidcWorkload(Section):
    client_id: str | None = Field(default=None, description="audience of workload identity tokens")


class Oidc(Section):
    issuer: Annotated[str, AfterValidator(_issuer)] | None = Field(
        default=None, description="issuer whose access tokens are believed; null: none"
    )
    audience: str | None = Field(
        default=None, description="audience that a token must name; null: `client_id`"
    )
    client_id: str | None = Field(default=None, description="told to clients that want to log in")
    algorithms: Annotated[list[Algorithm], Field(min_length=1)] = Field(
        default_factory=lambda: list(_ALGORITHMS),
        description="signatures that are accepted; those with a shared key, and none at all, never are",
    )
    jwks_cache_seconds: Limit = Field(default=300, description="how long the issuer's keys are kept")
    leeway_seconds: Annotated[Seconds, Field(le=600)] = Field(
        default=30, description="by how much clocks may differ"
    )
    principal_claim: Nonempty = Field(default="sub", description="claim with the caller's name")
    email_claim: Nonempty = Field(default="email", description="claim with the caller's e-mail address")
    groups_claim: Nonempty = Field(default="groups", description="claim with the caller's groups")
    grants: list[OidcGrant] = Field(
        default_factory=list, description="what claims give; without an entry that fits: nothing"
    )
    workload: OidcWorkload = Field(default_factory=OidcWorkload)

    @model_validator(mode="after")
    def _says_for_whom(self) -> "Oidc":
        if self.issuer is not None and not self.wanted_audience:
            raise PydanticCustomError(
                "audience", "needs audience (or client_id) beside issuer: tokens for others must not count"
            )
        return self

    @property
    def wanted_audience(self) -> str | None:
        return self.audience or self.client_id


class Auth(Section):
    """Section `auth`."""

    enabled: bool = Field(
        default=False, description="ask every caller for a token; without it only loopback is served"
    )
    oidc: Oidc = Field(default_factory=Oidc)
