"""Clients of a Kafka cluster, by confluent-kafka (librdkafka), and the mapping of their errors.

The only module that knows the transport. Invariant: nothing is committed to the cluster and no
group is joined, because offsets are stored with our own state. An error or a log must never contain
a secret. A consumer must never return records of aborted or open transactions.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer
from confluent_kafka.admin import AdminClient

from connectors import netguard
from connectors.kafka.connection import Connection
from connectors.option_reader import ERRORS
from dataflow.errors import TemporaryError, TidemarkError

REQUEST_TIMEOUT_S = 30.0
# For how long a reported refusal explains a later time-out.
REMEMBERED_S = 60.0
# For how long a broker's resolved addresses are reused.
CHECKED_S = 30.0
_LOGIN = {
    KafkaError._AUTHENTICATION,
    KafkaError.SASL_AUTHENTICATION_FAILED,
    KafkaError.UNSUPPORTED_SASL_MECHANISM,
    KafkaError.ILLEGAL_SASL_STATE,
}
_PRIVILEGE = {
    KafkaError.TOPIC_AUTHORIZATION_FAILED,
    KafkaError.GROUP_AUTHORIZATION_FAILED,
    KafkaError.CLUSTER_AUTHORIZATION_FAILED,
    KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
}
_AWAY = {
    KafkaError._TRANSPORT,
    KafkaError._ALL_BROKERS_DOWN,
    KafkaError._RESOLVE,
    KafkaError._TIMED_OUT,
    KafkaError._TIMED_OUT_QUEUE,
    KafkaError._MSG_TIMED_OUT,
    KafkaError._WAIT_COORD,
    KafkaError._WAIT_CACHE,
    # Not listed at the moment, as for a broker that is starting; only the admin client can say
    # whether the topic is gone.
    KafkaError._UNKNOWN_PARTITION,
    # The client closed a connection, as for a broker that the cluster no longer lists.
    KafkaError._DESTROY_BROKER,
    KafkaError._UNKNOWN_BROKER,
    KafkaError._NODE_UPDATE,
    KafkaError._FAIL,
    KafkaError._RETRY,
    KafkaError.REQUEST_TIMED_OUT,
    KafkaError.BROKER_NOT_AVAILABLE,
    KafkaError.NETWORK_EXCEPTION,
    KafkaError.LEADER_NOT_AVAILABLE,
    KafkaError.NOT_LEADER_FOR_PARTITION,
    KafkaError.REPLICA_NOT_AVAILABLE,
    KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
    KafkaError.COORDINATOR_NOT_AVAILABLE,
    KafkaError.NOT_COORDINATOR,
    KafkaError.NOT_CONTROLLER,
    KafkaError.NOT_ENOUGH_REPLICAS,
    KafkaError.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
    KafkaError.KAFKA_STORAGE_ERROR,
    KafkaError.OFFSET_NOT_AVAILABLE,
    KafkaError.UNSTABLE_OFFSET_COMMIT,
    KafkaError.LISTENER_NOT_FOUND,
    KafkaError.PREFERRED_LEADER_NOT_AVAILABLE,
    KafkaError.ELIGIBLE_LEADERS_NOT_AVAILABLE,
    KafkaError.FETCH_SESSION_ID_NOT_FOUND,
    KafkaError.INVALID_FETCH_SESSION_EPOCH,
    KafkaError.STALE_BROKER_EPOCH,
    KafkaError.FENCED_LEADER_EPOCH,
    KafkaError.UNKNOWN_LEADER_EPOCH,
    KafkaError.THROTTLING_QUOTA_EXCEEDED,
    KafkaError.REBOOTSTRAP_REQUIRED,
}


class Client:
    """Makes consumers, producers and admin clients of one cluster.

    side: "source" or "sink", the first word of the error codes. name: of the source or sink.
    Thread-safe.
    """

    def __init__(self, connection: Connection, side: str, name: str) -> None:
        self.side = side
        self.name = name
        self._connection = connection
        self._refusals: deque[tuple[float, KafkaError]] = deque(maxlen=4)
        self._checked: dict[str, float] = {}

    def check_brokers(self, hosts: Iterable[str]) -> None:
        """Refuse a cluster whose metadata lists hosts that must not be reached.

        The brokers themselves choose their advertised names. SourceError host.forbidden.
        """
        now = time.monotonic()
        for host in set(hosts):
            if now - self._checked.get(host, -CHECKED_S) < CHECKED_S:
                continue
            with suppress(TemporaryError):  # the client itself reports an unreachable broker
                netguard.check_host(host)
                self._checked[host] = now

    def consumer(
        self, on_error: Callable[[KafkaError], None] | None = None, **settings: Any
    ) -> Consumer:
        """Return a read_committed consumer; the caller assigns partitions.

        settings: librdkafka's, with `_` for `.`; the user's own settings override them. Offsets out
        of range are errors, never resets. on_error: receives errors that no record carries, during
        calls of the consumer.
        """
        fixed = {
            # librdkafka requires a group id; the group is neither joined nor committed to.
            "group.id": f"tidemark-{self.name}",
            "enable.auto.commit": False,
            "enable.auto.offset.store": False,
            "auto.offset.reset": "error",
            "isolation.level": "read_committed",
            "allow.auto.create.topics": False,
        }

        def note(error: KafkaError) -> None:
            self._note(error)
            if on_error is not None:
                on_error(error)

        chosen = {**_dotted(settings), **self._connection.client}
        return self._make(Consumer, {**chosen, **fixed, "error_cb": note})

    def producer(self, **settings: Any) -> Producer:
        """Return an idempotent producer; settings are librdkafka's with `_` for `.`."""
        return self._make(Producer, {"enable.idempotence": True, **_dotted(settings)})

    def admin(self) -> AdminClient:
        """Return an admin client, for topics and offsets."""
        return self._make(AdminClient, {})

    def refused(
        self, error: KafkaException | KafkaError, doing: str, client: Any = None
    ) -> TidemarkError:
        """Return our error for a client error.

        doing: the attempted action, as in "reading its topics". client: the consumer, producer or
        admin whose call failed, since its callbacks may hold the reason; do not use a consumer
        after this. TemporaryError `<side>.unreachable`; refusals `<side>.login`, `<side>.tls`,
        `<side>.privilege`, `<side>.failed`.
        """
        reported = error_of(error)
        code = reported.code()
        if code in _AWAY:
            if client is not None:
                client.poll(0)
            reported = self._explained(reported)
            code = reported.code()
        detail = f"{doing}: {reported.str()}"
        kind, named = ERRORS[self.side], f'kafka {self.side} "{self.name}"'
        if code in _LOGIN:
            return kind(
                f"{self.side}.login",
                f"{named} rejects the user's credentials",
                detail=detail,
                hint="check sasl: mechanism, username and password",
            )
        if _is_certificate(reported):
            return kind(
                f"{self.side}.tls",
                f"{named} cannot be reached over TLS",
                detail=detail,
                hint="check tls: ca_file, certificate_file, key_file, verify_host",
            )
        if code in _PRIVILEGE:
            return kind(
                f"{self.side}.privilege",
                f"{named} denies the user access",
                detail=detail,
                hint="grant the user READ and DESCRIBE on its topics"
                if self.side == "source"
                else "grant the user WRITE, CREATE and DESCRIBE on its topics, and its "
                "transactional ids",
            )
        if code in _AWAY or code == KafkaError._SSL or reported.retriable():
            return TemporaryError(
                f"{self.side}.unreachable",
                f"{named} does not answer",
                detail=detail,
                hint="check bootstrap_servers, and that the brokers are up",
            )
        return kind(f"{self.side}.failed", f"{named} failed", detail=detail)

    def _make(self, kind: Any, settings: dict[str, Any]) -> Any:
        fixed = {
            "error_cb": self._note,
            # Failures reach us as errors; the client's own log has no structured fields.
            "log_level": 0,
            "log.connection.close": False,
            "client.id": f"tidemark-{self.name}",
        }
        config = {**fixed, **self._connection.config(), **settings}
        try:
            return kind(config)
        except KafkaException as error:
            raise ERRORS[self.side](
                f"{self.side}.bad_option",
                f'kafka {self.side} "{self.name}" has options that the client rejects',
                detail=error_of(error).str(),
                hint="correct the option that the detail names",
            ) from None

    def _note(self, error: KafkaError) -> None:
        """Record an error; called by the client's threads. A failed login otherwise only shows as a
        time-out.
        """
        if error.code() in _LOGIN or error.code() == KafkaError._SSL:
            self._refusals.append((time.monotonic(), error))

    def _explained(self, error: KafkaError) -> KafkaError:
        """Return the refusal behind a time-out, once, or the error itself."""
        recent = [e for at, e in list(self._refusals) if time.monotonic() - at < REMEMBERED_S]
        self._refusals.clear()
        return recent[-1] if recent else error


def error_of(error: KafkaException | KafkaError) -> KafkaError:
    """Return the error inside an exception."""
    return error.args[0] if isinstance(error, KafkaException) else error


def _is_certificate(error: KafkaError) -> bool:
    return error.code() == KafkaError._SSL and "certificate" in error.str()


def _dotted(settings: dict[str, Any]) -> dict[str, Any]:
    return {name.replace("_", "."): value for name, value in settings.items()}
