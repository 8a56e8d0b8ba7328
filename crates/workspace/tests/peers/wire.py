"""The workspace protocol in plain Python, written from its description alone."""
import json
import struct

NAMES = ["Notification", "Heartbeat", "WriteBack", "WriteBackResult", "BarrierRequest", "BarrierConfirmation",
         "Ack", "ContentFetchRequest", "ContentFetchResponse", "ContentNotFound", "CatchupRequest",
         "FullResyncRequired"]
FIELDS = {
    "Notification": [("sequence", "u64"), ("filepath", "str"), ("content_hash", "str"), ("size", "u64"),
                     ("permissions", "i64"), ("is_deletion", "bool"), ("inline_content", "?bytes")],
    "Heartbeat": [("agent_sequence", "u64"), ("agent_iteration", "i64")],
    "WriteBack": [("sandbox_id", "str"), ("entries", "entries")],
    "WriteBackResult": [("accepted", "pairs"), ("rejected", "reasons")],
    "BarrierRequest": [("sequence", "u64")],
    "BarrierConfirmation": [("satisfied", "bool"), ("current_sequence", "u64")],
    "Ack": [("up_to_sequence", "u64")],
    "ContentFetchRequest": [("content_hash", "str")],
    "ContentFetchResponse": [("content_hash", "str"), ("content", "bytes"), ("size", "u64"),
                             ("chunk_manifest", "?str")],
    "ContentNotFound": [("content_hash", "str")],
    "CatchupRequest": [("sandbox_id", "str"), ("since_sequence", "u64")],
    "FullResyncRequired": [("reason", "str"), ("current_sequence", "u64")],
}
ENTRY = [("local_seq", "u64"), ("filepath", "str"), ("operation", "operation"), ("content_hash", "?str"),
         ("content_bytes", "?bytes"), ("size", "i64"), ("permissions", "i64"), ("is_deletion", "bool"),
         ("master_rowid_seen", "i64")]
OPERATIONS = ["Write", "Delete", "Rename", "Chmod"]


def put(kind, value):
    if kind == "u64":
        return struct.pack("<Q", value)
    if kind == "i64":
        return struct.pack("<q", value)
    if kind == "bool":
        return bytes([value])
    if kind == "bytes":
        return struct.pack("<Q", len(value)) + value
    if kind == "str":
        return put("bytes", value.encode())
    if kind[0] == "?":
        return b"\0" if value is None else b"\1" + put(kind[1:], value)
    if kind == "operation":
        name, new_path = value
        return struct.pack("<I", OPERATIONS.index(name)) + (put("str", new_path) if name == "Rename" else b"")
    rows = {"pairs": lambda row: put("u64", row[0]) + put("i64", row[1]),
            "reasons": lambda row: put("u64", row[0]) + put("str", row[1]),
            "entries": lambda row: b"".join(put(kind, row[name]) for name, kind in ENTRY)}
    return put("u64", len(value)) + b"".join(rows[kind](row) for row in value)


class Reader:
    def __init__(self, data):
        self.data, self.at = data, 0

    def take(self, count):
        part = self.data[self.at:self.at + count]
        if len(part) != count:
            raise ValueError("cut short")
        self.at += count
        return part

    def get(self, kind):
        if kind == "u64":
            return struct.unpack("<Q", self.take(8))[0]
        if kind == "i64":
            return struct.unpack("<q", self.take(8))[0]
        if kind == "bool":
            return self.take(1) == b"\1"
        if kind == "bytes":
            return self.take(self.get("u64"))
        if kind == "str":
            return self.get("bytes").decode()
        if kind[0] == "?":
            return self.get(kind[1:]) if self.get("bool") else None
        if kind == "operation":
            name = OPERATIONS[struct.unpack("<I", self.take(4))[0]]
            return name, self.get("str") if name == "Rename" else None
        rows = {"pairs": lambda: (self.get("u64"), self.get("i64")),
                "reasons": lambda: (self.get("u64"), self.get("str")),
                "entries": lambda: {name: self.get(kind) for name, kind in ENTRY}}
        return [rows[kind]() for _ in range(self.get("u64"))]


class Peer:
    """One end of a connection."""

    def __init__(self, stream):
        self.stream = stream

    def send(self, name, **fields):
        payload = struct.pack("<I", NAMES.index(name))
        payload += b"".join(put(kind, fields[field]) for field, kind in FIELDS[name])
        self.stream.sendall(struct.pack("<I", len(payload)) + payload)

    def exactly(self, count):
        data = b""
        while len(data) < count:
            part = self.stream.recv(count - len(data))
            if not part:
                raise EOFError
            data += part
        return data

    def receive(self):
        length, = struct.unpack("<I", self.exactly(4))
        reader = Reader(self.exactly(length))
        name = NAMES[struct.unpack("<I", reader.take(4))[0]]
        fields = {field: reader.get(kind) for field, kind in FIELDS[name]}
        assert reader.at == length, "trailing bytes"
        return name, fields


IV = [0x6A09E667, 0xBB67AE85, 0x3C6EF372, 0xA54FF53A, 0x510E527F, 0x9B05688C, 0x1F83D9AB, 0x5BE0CD19]
PERMUTATION = [2, 6, 3, 10, 7, 0, 4, 13, 1, 11, 12, 5, 9, 14, 15, 8]
MASK = 0xFFFFFFFF
ROUNDS = [(0, 4, 8, 12, 0), (1, 5, 9, 13, 2), (2, 6, 10, 14, 4), (3, 7, 11, 15, 6),
          (0, 5, 10, 15, 8), (1, 6, 11, 12, 10), (2, 7, 8, 13, 12), (3, 4, 9, 14, 14)]


def compress(chaining, block, counter, length, flags):
    v = chaining + IV[:4] + [counter & MASK, counter >> 32, length, flags]
    m = list(struct.unpack("<16I", block.ljust(64, b"\0")))
    for _ in range(7):
        for a, b, c, d, i in ROUNDS:
            for word, right_d, right_b in ((m[i], 16, 12), (m[i + 1], 8, 7)):
                v[a] = (v[a] + v[b] + word) & MASK
                x = v[d] ^ v[a]
                v[d] = (x >> right_d | x << (32 - right_d)) & MASK
                v[c] = (v[c] + v[d]) & MASK
                x = v[b] ^ v[c]
                v[b] = (x >> right_b | x << (32 - right_b)) & MASK
        m = [m[i] for i in PERMUTATION]
    return [v[i] ^ v[i + 8] for i in range(8)]


def blake3(data):
    def chunk(part, counter, root):
        chaining = IV
        blocks = [part[i:i + 64] for i in range(0, len(part), 64)] or [b""]
        for index, block in enumerate(blocks):
            flags = (1 if index == 0 else 0) | (2 if index == len(blocks) - 1 else 0)
            flags |= 8 if root and index == len(blocks) - 1 else 0
            chaining = compress(chaining, block, counter, len(block), flags)
        return chaining

    def node(first, count, root):
        if count == 1:
            return chunk(data[first * 1024:(first + 1) * 1024], first, root)
        left = 1 << ((count - 1).bit_length() - 1)
        words = node(first, left, False) + node(first + left, count - left, False)
        return compress(IV, struct.pack("<16I", *words), 0, 64, 4 | (8 if root else 0))

    words = node(0, max(1, (len(data) + 1023) // 1024), True)
    return struct.pack("<8I", *words).hex()


def fetch(ask, content_hash):
    """Content by hash; `ask` sends a request and returns the answer."""
    answer = ask(content_hash)
    if answer["chunk_manifest"] is None:
        content = answer["content"]
    else:
        manifest = json.loads(answer["chunk_manifest"])
        content = b"".join(ask(chunk["hash"])["content"] for chunk in manifest["chunks"])
        assert len(content) == manifest["total_size"]
    assert blake3(content) == content_hash
    return content
