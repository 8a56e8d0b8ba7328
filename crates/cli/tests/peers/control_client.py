#!/usr/bin/env python3
"""All 15 requests of the control plane, written from the table of its specification.

Standard library only; the protobuf encoding is done by hand. Takes the path of the socket and that
of the daemon's config.toml, prints one line for each request that was answered, and refused, as the
table says, and fails at the first that was not.
"""

import json
import socket
import struct
import sys

# --- protobuf, as much of it as the table needs -------------------------------------------------


def varint(number):
    out = bytearray()
    while True:
        out.append((number & 0x7F) | (0x80 if number > 0x7F else 0))
        number >>= 7
        if not number:
            return bytes(out)


def field(number, value):
    """A string, bytes, bool or integer field; an unset one (None) is left out."""
    if value is None:
        return b""
    if isinstance(value, (bool, int)):
        return varint(number << 3) + varint(int(value))
    if isinstance(value, str):
        value = value.encode()
    return varint(number << 3 | 2) + varint(len(value)) + value


def decode(data):
    """Field number to the list of its values: integers, or bytes."""
    fields, at = {}, 0

    def read_varint():
        nonlocal at
        number = shift = 0
        while True:
            byte = data[at]
            at += 1
            number |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return number

    while at < len(data):
        key = read_varint()
        if key & 7 == 0:
            value = read_varint()
        elif key & 7 == 2:
            length = read_varint()
            value, at = data[at : at + length], at + length
        else:
            raise ValueError(f"wire type {key & 7}")
        fields.setdefault(key >> 3, []).append(value)
    return fields


def text(fields, number):
    return fields.get(number, [b""])[0].decode()


def integer(fields, number):
    return fields.get(number, [0])[0]


# --- the connection ------------------------------------------------------------------------------

SEND, STREAM, PING, SESSIONS, KILL, GET_CONFIG, SET_CONFIG, RELOAD = range(1, 9)
SUBSCRIBE, REPLY, STATS, CREATE_CRON, DELETE_CRON, LIST_CRONS, COMPACT = range(9, 16)

R_RESPONSE, R_STREAM, R_ERROR, R_PONG, R_SESSIONS, R_CONFIG = range(1, 7)
R_EVENT, R_STATS, R_CRON, R_CRONS, R_COMPACT = range(7, 12)

START, CHUNK, THINKING, TOOL_START, TOOL_RESULT, TOOLS_COMPLETE, END, ASK = range(1, 9)


class Connection:
    def __init__(self, path):
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.settimeout(20)
        self.socket.connect(path)

    def send(self, number, payload=b""):
        message = field(number, payload)
        self.socket.sendall(struct.pack(">I", len(message)) + message)

    def exactly(self, count):
        data = b""
        while len(data) < count:
            more = self.socket.recv(count - len(data))
            if not more:
                raise EOFError("the daemon closed the connection")
            data += more
        return data

    def receive(self):
        """The number of the reply and its fields."""
        (length,) = struct.unpack(">I", self.exactly(4))
        ((number, values),) = decode(self.exactly(length)).items()
        return number, decode(values[0])

    def ask(self, number, payload=b"", expect=R_PONG):
        self.send(number, payload)
        reply, fields = self.receive()
        if reply != expect:
            raise AssertionError(f"request {number}: reply {reply}, {fields}")
        return fields

    def refused(self, number, payload, code, names=""):
        fields = self.ask(number, payload, R_ERROR)
        assert integer(fields, 1) == code, fields
        assert text(fields, 2) and names in text(fields, 2), fields


def request(agent, content, session=None, cwd=None, new_chat=None, resume_file=None):
    return (
        field(1, agent)
        + field(2, content)
        + field(3, session)
        + field(4, "python")
        + field(5, cwd)
        + field(6, new_chat)
        + field(7, resume_file)
    )


def events_of(connection, payload):
    """The events of one streamed turn, up to and with `end`."""
    connection.send(STREAM, payload)
    while True:
        reply, fields = connection.receive()
        assert reply == R_STREAM, (reply, fields)
        # Numbers from 1000 up are additions that this client does not know.
        ((number, values),) = [item for item in fields.items() if item[0] < 1000]
        yield number, decode(values[0])
        if number == END:
            return


def done(name):
    print(f"{name}: ok", flush=True)


def main(path, config_file):
    connection = Connection(path)
    other = Connection(path)

    connection.ask(PING)
    # Neither an empty message nor one of a number that the table does not have ends a connection.
    connection.socket.sendall(struct.pack(">I", 0))
    reply, fields = connection.receive()
    assert reply == R_ERROR and integer(fields, 1) == 400, (reply, fields)
    connection.refused(999, b"", 400)
    connection.ask(PING)
    done("ping")

    reply = connection.ask(SEND, request("test", "say hello from afar"), R_RESPONSE)
    assert text(reply, 1) == "test" and text(reply, 2) == "hello from afar", reply
    session = integer(reply, 3)
    connection.refused(SEND, request("nobody", "hi"), 404)
    connection.refused(SEND, request("test", "hi", session=4711), 404, "4711")
    # A session that is named stands above the other selectors; then comes the file.
    again = request("test", "say again", session=session, new_chat=True, resume_file="/nowhere")
    assert integer(connection.ask(SEND, again, R_RESPONSE), 3) == session
    connection.refused(SEND, request("test", "hi", resume_file="/nowhere"), 400, "/nowhere")
    new = request("test", "say new", cwd="/", new_chat=True)
    reply = connection.ask(SEND, new, R_RESPONSE)
    assert integer(reply, 3) == session + 1 and text(reply, 2) == "new", reply
    newest = connection.ask(SEND, request("test", "say newest"), R_RESPONSE)
    assert integer(newest, 3) == session + 1, newest
    done("send")

    events = list(events_of(connection, request("test", "tool", session)))
    numbers = [number for number, _ in events]
    assert numbers[0] == START and numbers[-1] == END and numbers.count(END) == 1, numbers
    assert integer(events[0][1], 2) == session
    assert [number for number in numbers if number in (TOOL_START, TOOL_RESULT, TOOLS_COMPLETE)] == [
        TOOL_START,
        TOOL_RESULT,
        TOOLS_COMPLETE,
    ], numbers
    call = decode(dict(events)[TOOL_START][1][0])
    assert text(call, 1) == "exec" and json.loads(text(call, 2)) == {"command": "ls"}, call
    result = dict(events)[TOOL_RESULT]
    assert text(result, 1) == text(call, 3) and text(result, 2) == "a.txt" and integer(result, 3) == 12
    answer = "".join(text(fields, 1) for number, fields in events if number == CHUNK)
    assert answer == "there is one file", answer
    assert text(events[-1][1], 1) == "test" and text(events[-1][1], 2) == "", "no error"
    connection.refused(STREAM, request("nobody", "hi"), 404, "nobody")
    connection.refused(STREAM, request("test", "hi", session=4711), 404, "4711")
    done("stream")

    sessions = [decode(one) for one in connection.ask(SESSIONS, b"", R_SESSIONS)[1]]
    (mine,) = [one for one in sessions if integer(one, 1) == session]
    assert text(mine, 2) == "test" and text(mine, 3) == "python" and integer(mine, 4) == 3, mine
    done("sessions")

    config = text(connection.ask(GET_CONFIG, b"", R_CONFIG), 1)
    assert json.loads(config)["http"]["listen"]
    done("get_config")

    connection.ask(SET_CONFIG, field(1, config))
    connection.refused(SET_CONFIG, field(1, '{"http": {"lisen": 1}}'), 400, "http.lisen")
    connection.refused(SET_CONFIG, field(1, "no JSON"), 400)
    done("set_config")

    connection.ask(RELOAD)
    with open(config_file, encoding="utf-8") as file:
        good = file.read()
    with open(config_file, "w", encoding="utf-8") as file:
        file.write(good + "\n[http\n")
    line = (good + "\n[http\n").split("\n").index("[http") + 1
    connection.refused(RELOAD, b"", 400, f"config.toml:{line}")
    assert text(connection.ask(GET_CONFIG, b"", R_CONFIG), 1) == config, "the old one stays"
    with open(config_file, "w", encoding="utf-8") as file:
        file.write(good)
    connection.ask(RELOAD)
    done("reload")

    other.send(SUBSCRIBE)
    # A subscription has no first answer, so that nobody knows from when on it holds: one that
    # began in the middle of a turn shows the next one whole.
    other.socket.settimeout(2)
    for attempt in range(5):
        connection.ask(SEND, request("test", f"say watched {attempt}", session), R_RESPONSE)
        try:
            seen = [other.receive()]
            while integer(seen[-1][1], 3) != 5:  # DONE
                seen.append(other.receive())
        except TimeoutError:
            continue
        if "".join(text(event, 4) for _, event in seen if integer(event, 3) == 0) == f"watched {attempt}":
            break
    else:
        raise AssertionError("no turn was shown whole")
    assert all(reply == R_EVENT for reply, _ in seen)
    assert all(text(event, 1) == "test" and integer(event, 2) == session for _, event in seen)
    assert all(text(event, 5) for _, event in seen), "every event has its time"
    done("subscribe_events")

    third = Connection(path)
    answer = ""
    for number, fields in events_of(connection, request("test", "ask", session)):
        if number == ASK:
            question = decode(fields[1][0])
            assert text(question, 1) == "Which colour?" and text(question, 2) == "Colour"
            assert [text(decode(option), 1) for option in question[3]] == ["red", "blue"]
            third.ask(REPLY, field(1, session) + field(2, "blue"))
        elif number == CHUNK:
            answer += text(fields, 1)
    assert answer == "you said blue", answer
    third.refused(REPLY, field(1, session) + field(2, "again"), 404)
    done("reply_to_ask")

    stats = connection.ask(STATS, b"", R_STATS)
    assert integer(stats, 3) >= 1, "agents are registered"
    done("get_stats")

    def cron(schedule, skill="clock", into=session, quiet_start=None):
        quiet = field(4, quiet_start) + field(5, quiet_start and "07:00")
        return field(1, schedule) + field(2, skill) + field(3, into) + quiet + field(6, True)

    made = connection.ask(CREATE_CRON, cron("0 9 * * *", quiet_start="22:00"), R_CRON)
    assert text(made, 2) == "0 9 * * *" and text(made, 3) == "clock" and integer(made, 7) == 1, made
    assert integer(made, 4) == session and (text(made, 5), text(made, 6)) == ("22:00", "07:00"), made
    connection.refused(CREATE_CRON, cron("never"), 400, "never")
    connection.refused(CREATE_CRON, cron("@daily", quiet_start="25:00"), 400, "25:00")
    connection.refused(CREATE_CRON, cron("@daily", skill="nothing"), 404, "nothing")
    connection.refused(CREATE_CRON, cron("@daily", into=4711), 404, "4711")
    done("create_cron")

    crons = [decode(one) for one in connection.ask(LIST_CRONS, b"", R_CRONS)[1]]
    assert [(integer(one, 1), text(one, 5)) for one in crons] == [(integer(made, 1), "22:00")], crons
    done("list_crons")

    connection.ask(DELETE_CRON, field(1, integer(made, 1)))
    connection.refused(DELETE_CRON, field(1, integer(made, 1)), 404)
    done("delete_cron")

    summary = text(connection.ask(COMPACT, field(1, session), R_COMPACT), 1)
    assert summary.startswith("summary of"), summary
    connection.refused(COMPACT, field(1, 4711), 404)
    done("compact")

    connection.ask(KILL, field(1, session))
    connection.refused(KILL, field(1, 4711), 404)
    connection.refused(SEND, request("test", "hi", session=session), 404, "closed")
    done("kill")


main(sys.argv[1], sys.argv[2])
