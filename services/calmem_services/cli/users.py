"""`calmem users`, `calmem sessions`, `calmem messages`: what is kept of whom, and deleting it."""

from __future__ import annotations

import click
from calmem.errors import InvalidInput
from calmem.model import Receipt, User
from calmem.settings import Settings
from calmem.storage.pool import Database
from calmem.users import PAGE, Users

from calmem_services.cli.output import json_option, print_counts, print_json, print_table
from calmem_services.cli.reach import with_servers
from calmem_services.http import wire

_owner = click.option("--user", "user_id", required=True, help="Whose it is.")
_cursor = click.option("--cursor", help="Where the page begins: the `next_cursor` of the page before.")
_limit = click.option("--limit", type=int, default=PAGE, show_default=True, help="Rows of one page.")


@click.group("users")
def users_command() -> None:
    """Users: the memory switch, the time zone, deleting everything."""


@users_command.command("get")
@click.argument("user_id")
@json_option
@click.pass_obj
def get_command(settings: Settings, user_id: str, as_json: bool) -> None:
    """Show a user's switch and time zone."""
    with Database(with_servers(settings)) as database:
        _print_user(Users(database).get(user_id), as_json)


@users_command.command("set")
@click.argument("user_id")
@click.option("--memory", type=click.Choice(["on", "off"]), help="off: nothing is written, read or injected.")
@click.option("--time-zone", help="IANA name such as Asia/Shanghai.")
@json_option
@click.pass_obj
def set_command(settings: Settings, user_id: str, memory: str | None, time_zone: str | None, as_json: bool) -> None:
    """Create a user, or change the switch or the time zone."""
    if memory is None and time_zone is None:
        raise InvalidInput("--memory", "give --memory, --time-zone or both")
    with Database(with_servers(settings)) as database:
        _print_user(Users(database).put(user_id, memory=memory, time_zone=time_zone), as_json)


@users_command.command("delete")
@click.argument("user_id")
@click.option("--yes", is_flag=True, help="Do not ask.")
@json_option
@click.pass_obj
def delete_user_command(settings: Settings, user_id: str, yes: bool, as_json: bool) -> None:
    """Remove everything of a user."""
    if not yes:
        click.confirm(f"Remove everything of {user_id}?", abort=True, err=True)
    with Database(with_servers(settings)) as database:
        _print_receipt(Users(database).delete_user(user_id), as_json)


@click.group("sessions")
def sessions_command() -> None:
    """Sessions: list, show, delete."""


@sessions_command.command("list")
@_owner
@_cursor
@_limit
@json_option
@click.pass_obj
def list_command(settings: Settings, user_id: str, cursor: str | None, limit: int, as_json: bool) -> None:
    """List a user's sessions, oldest first."""
    with Database(with_servers(settings)) as database:
        page, following = Users(database).sessions(user_id, cursor=cursor, limit=limit)
    shown = [wire.session(one) for one in page]
    if as_json:
        print_json({"sessions": shown, "next_cursor": following})
        return
    print_table(("SESSION", "MESSAGES", "FIRST", "LAST"), [list(one.values()) for one in shown])
    _print_more(following)


@sessions_command.command("show")
@_owner
@click.argument("session_id")
@_cursor
@_limit
@json_option
@click.pass_obj
def show_command(
    settings: Settings, user_id: str, session_id: str, cursor: str | None, limit: int, as_json: bool
) -> None:
    """Print the messages of a session in their order."""
    with Database(with_servers(settings)) as database:
        page, following = Users(database).messages(user_id, session_id, cursor=cursor, limit=limit)
    if as_json:
        print_json({"messages": [wire.message(one) for one in page], "next_cursor": following})
        return
    for one in page:
        waiting = "" if one.indexed else "  (not indexed yet)"
        click.echo(f"{one.seq:5}  {one.created_at:%Y-%m-%d %H:%M}  {one.name or one.role}: {one.content}{waiting}")
    _print_more(following)


@sessions_command.command("delete")
@_owner
@click.argument("session_id")
@json_option
@click.pass_obj
def delete_session_command(settings: Settings, user_id: str, session_id: str, as_json: bool) -> None:
    """Remove a session with its messages and facts."""
    with Database(with_servers(settings)) as database:
        _print_receipt(Users(database).delete_session(user_id, session_id), as_json)


@click.group("messages")
def messages_command() -> None:
    """Messages: delete."""


@messages_command.command("delete")
@_owner
@click.argument("message_id")
@json_option
@click.pass_obj
def delete_message_command(settings: Settings, user_id: str, message_id: str, as_json: bool) -> None:
    """Remove one message and everything derived from it."""
    with Database(with_servers(settings)) as database:
        _print_receipt(Users(database).delete_message(user_id, message_id), as_json)


def _print_user(user: User, as_json: bool) -> None:
    shown = wire.user(user)
    if as_json:
        print_json(shown)
    else:
        print_counts(shown)


def _print_receipt(receipt: Receipt, as_json: bool) -> None:
    if as_json:
        print_json({"removed": dict(receipt.removed)})
    else:
        click.echo("removed")
        print_counts(dict(receipt.removed))


def _print_more(cursor: str | None) -> None:
    if cursor is not None:
        click.echo(f"more: --cursor {cursor}", err=True)
