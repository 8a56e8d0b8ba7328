-- v1: questions that the device has been sent; its next message in their session answers one.
CREATE TABLE device_asks (
    device BLOB NOT NULL,
    ask    INTEGER NOT NULL,
    PRIMARY KEY (device, ask)
) STRICT, WITHOUT ROWID;
