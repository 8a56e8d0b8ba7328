/**
 * What the browser and the daemon say inside the encryption: shapes only, no code.
 *
 * Times are RFC 3339 in UTC, money is a decimal in a string, ids are numbers
 * unless said otherwise. The Rust side is crates/runtime/src/channel/.
 */

/** What the person sees of the connection. Exactly one of these holds at any time. */
export type ConnectionState =
  /** No device key is stored here, or the daemon revoked it: only `pair` leads on. */
  | { kind: 'unpaired'; reason?: 'revoked' }
  /** The first try of this page, or `retryNow`. */
  | { kind: 'connecting' }
  | { kind: 'live' }
  /** `at` is when the next try begins (`Date.now()` clock), `attempt` counts from 1. */
  | { kind: 'reconnecting'; at: number; attempt: number }
  /** Not trying: switched off with `disconnect`, or refused for a reason that trying again won't change. */
  | { kind: 'offline'; reason: string }

export interface Device {
  id: string
  name: string
  /** Four words; `quintet devices` shows the same ones for this device. */
  checkWords: string[]
}

/** How this browser keeps its device key. */
export type KeyStorage =
  /** WebCrypto, in IndexedDB, can't be exported by any script. */
  | 'non-extractable'
  /** Plain http or an old browser: the bytes are in IndexedDB. Show the note. */
  | 'plain'

/** An error that the daemon answered with, or the client's own. */
export interface ChannelErrorShape {
  code: ErrorCode
  message: string
}

export type ErrorCode =
  | 'bad_request'
  | 'not_found'
  | 'conflict'
  | 'over_limit'
  | 'internal'
  | 'not_available'
  | 'unknown_op'
  | 'unauthorized'
  /** The connection went away before the answer, and asking again could do the thing twice. */
  | 'connection_lost'
  /** `AbortSignal`, `cancel`, or the channel was closed. */
  | 'cancelled'
  /** Pairing. */
  | 'pairing_invalid_code'
  | 'pairing_locked_out'
  | 'pairing_code_expired'
  | 'pairing_already_used'
  | 'pairing_failed'
  /** The daemon at this address is not the one this browser is paired with. */
  | 'wrong_daemon'
  | (string & {})

export interface Hello {
  daemon_id: string
  version: string
  device: { id: string; name: string }
  features: string[]
  default_agent: string
  /** Whether the daemon may read folders for new sessions. */
  home: boolean
  check_words: string[]
}

export interface AgentInstance {
  agent_id: string
  session: number
  state: string
  pid: number | null
}

export interface Agent {
  name: string
  kind: string
  description: string
  instances: AgentInstance[]
}

export interface Session {
  id: number
  agent: string
  created_by: string
  title: string
  messages: number
  active: boolean
  alive_secs: number
  workspace: string
  worker: string
  cost: string
}

/** A row of the journal. `data`'s shape depends on `kind`. */
export interface JournalRow {
  seq: number
  at: string
  session: number | null
  kind: string
  data: Record<string, unknown>
  /** The message whose turn it belongs to. */
  turn: number | null
  /** There where long texts of `data` were cut. */
  cut?: boolean
}

export interface QueuedMessage {
  id: number
  session: number
  text: string
  /** Whether the text is only its beginning. */
  cut: boolean
  at: string
}

export interface Approval {
  id: number
  session: number
  action: string
  command: string
  cwd: string
  worker: string
  reason: string
  at: string
  /** SHA-256 (hex) of all that the answer is bound to. */
  hash: string
  /** What `scope: "rule"` would write, to be read and edited first; empty when no rule can say it. */
  rules: PolicyRule[]
  /** Where that would go. */
  place: string
}

/** A rule of `[policy]`; every selector is optional. */
export interface PolicyRule {
  tool?: string
  command?: string
  path?: string
  agent?: string
  worker?: string
  action: 'allow' | 'ask' | 'deny'
}

export interface Question {
  question: string
  header: string
  options: { label: string; description: string }[]
  multi_select: boolean
}

export interface Ask {
  id: number
  session: number
  questions: Question[]
  at: string
}

export interface TreeEntry {
  name: string
  kind: 'file' | 'dir' | 'link'
  size: number
  mode: number
  changed_seq: number
}

export interface WorkspaceLogEntry {
  sequence: number
  path: string
  change: 'write' | 'delete' | 'rename' | 'chmod'
  hash: string
  size: number
  mode: number
  author: string
  at: string
}

export interface FileDiff {
  path: string
  change: string
  unified: string
}

export interface Worker {
  id: string
  hostname: string
  platform: string
  arch: string
  version: string
  labels: Record<string, string>
  state: 'online' | 'stale' | 'offline'
  protocol: string
  running: number
  load?: { cpu: number; memory: number }
}

export interface ShellInfo {
  id: string
  started_at: string
  attached: boolean
}

export interface Cron {
  id: number
  schedule: string
  skill: string
  session: number
  quiet_start: string
  quiet_end: string
  once: boolean
  timezone: string
  next: string
}

export interface CronRun {
  cron: number
  due: string
  started: string
  finished: string
  outcome: string
  detail: string
}

export interface NewCron {
  schedule: string
  skill: string
  session: number
  quiet_start?: string
  quiet_end?: string
  once?: boolean
  timezone?: string
}

export interface UsageRow {
  key: string
  input_tokens: number
  output_tokens: number
  cost: string
}

export interface DeviceRow {
  id: string
  name: string
  first_seen: string
  last_seen: string
  expires_at: string
  check_words: string[]
}

export interface Stats {
  uptime_secs: number
  active_sessions: number
  registered_agents: number
  workers: number
  cost: string
}

type Empty = Record<string, never>

/** Every request: its arguments and its answer. */
export interface Ops {
  hello: { args: Empty; ok: Hello }
  'agents.list': { args: Empty; ok: { agents: Agent[] } }
  'sessions.list': { args: { include_closed?: boolean }; ok: { sessions: Session[] } }
  'sessions.create': {
    args: { agent: string; cwd?: string; worker?: string; title?: string }
    ok: { session: number }
  }
  'sessions.title': { args: { session: number; title: string }; ok: Empty }
  'sessions.kill': { args: { session: number }; ok: Empty }
  'sessions.compact': { args: { session: number }; ok: { summary: string } }
  'compactions.undo': { args: { session: number }; ok: Empty }
  'events.page': {
    args: { session: number; before?: number; limit: number }
    ok: { events: JournalRow[] }
  }
  'messages.send': {
    args: { session: number; content: string; mode: 'queue' | 'steer'; client_key?: string }
    ok: { message_id: number; queued: boolean }
  }
  'messages.cancel': { args: { session: number }; ok: Empty }
  'messages.retry': { args: { session: number }; ok: { message_id: number } }
  'queue.list': { args: { session?: number }; ok: { queue: QueuedMessage[] } }
  'queue.remove': { args: { id: number }; ok: Empty }
  'queue.edit': { args: { id: number; text: string }; ok: Empty }
  'approvals.list': { args: Empty; ok: { approvals: Approval[] } }
  'approvals.answer': {
    args: {
      id: number
      approved: boolean
      scope: 'once' | 'session' | 'rule'
      rule?: PolicyRule
      reason?: string
    }
    ok: Empty
  }
  'asks.list': { args: Empty; ok: { asks: Ask[] } }
  'asks.reply': { args: { session: number; text: string; ask?: number }; ok: Empty }
  'workspace.tree': {
    args: { session: number; path: string; at?: number }
    ok: { sequence: number; entries: TreeEntry[] }
  }
  'workspace.file': {
    args: { session: number; path: string; at?: number }
    ok: { sequence: number; size: number; binary: boolean; text?: string; truncated: boolean }
  }
  'workspace.log': {
    args: { session: number; path?: string; before?: number; limit: number }
    ok: { entries: WorkspaceLogEntry[] }
  }
  'workspace.diff': {
    args: { session: number; from: number; to: number; path?: string }
    ok: { files: FileDiff[] }
  }
  'workspace.restore': {
    args: { session: number; to: number; path?: string; dry_run: boolean }
    ok: { changes: { path: string; change: string }[]; sequence: number }
  }
  'workers.list': { args: Empty; ok: { workers: Worker[] } }
  'shells.list': { args: { worker: string }; ok: { shells: ShellInfo[] } }
  'cron.list': { args: Empty; ok: { crons: Cron[] } }
  'cron.runs': { args: { cron?: number }; ok: { runs: CronRun[] } }
  'cron.add': { args: NewCron; ok: { cron: Cron } }
  'cron.remove': { args: { id: number }; ok: Empty }
  'usage.report': {
    args: { by: 'day' | 'agent' | 'session'; days: number }
    ok: { rows: UsageRow[] }
  }
  'devices.list': { args: Empty; ok: { devices: DeviceRow[]; current: string } }
  'devices.rename': { args: { id: string; name: string }; ok: Empty }
  'devices.revoke': { args: { id: string }; ok: Empty }
  'config.get': { args: Empty; ok: { config: Record<string, unknown> } }
  stats: { args: Empty; ok: Stats }
}

export type Op = keyof Ops

/** What `follow` yields: rows in order without gaps or repeats, and once where history ends. */
export type FollowItem = { row: JournalRow } | { caughtUp: number }

export interface RequestOptions {
  signal?: AbortSignal
}

export interface SendOptions extends RequestOptions {
  /** Names the message over reloads: sent again under the same key it is the same message. */
  clientKey?: string;
}

/** A terminal on a worker. It ends with its connection; `attachShell` brings it back. */
/** How a terminal's stream ended: `code` is `null` where the shell did not end. */
export interface StreamEnd {
  code: number | null
  /** Why it can't go on. Without one it can be attached to again. */
  reason?: string
}

export interface Terminal {
  readonly worker: string
  readonly shell: string
  /** How many bytes of the shell's output lie before the first that comes. */
  readonly from: number
  /** Bytes as the terminal wrote them. Iterate once; reading slowly slows the sender. */
  readonly output: AsyncIterable<Uint8Array>
  write(bytes: Uint8Array): void
  resize(rows: number, cols: number): void
  /** Detaches; the shell lives on. */
  detach(): void
  /** Ends the shell. */
  close(): void
  readonly ended: Promise<StreamEnd>
}

export interface Download {
  size: number
  /** BLAKE3, hex. */
  hash: string
  bytes: Uint8Array
}

/** The connection to the daemon. One per page. Without Svelte; wrap it in a `*.svelte.ts`. */
export interface Channel {
  readonly state: ConnectionState
  /** This browser as the daemon knows it; `null` while unpaired. */
  readonly device: Device | null
  readonly keyStorage: KeyStorage
  /** What `hello` answered on the connection that is live, or on the last one. */
  readonly hello: Hello | null

  /** Calls back at once with the present state and then at each change; returns how to stop. */
  onState(listener: (state: ConnectionState) => void): () => void

  /** Reads the stored key and connects when there is one. Resolves when `state` is settled. */
  start(): Promise<void>
  /** Pairs with the six digits and goes live. Throws `ChannelError` with a `pairing_*` code. */
  pair(code: string, name: string): Promise<Device>
  /** Tries at once instead of waiting for the timer. */
  retryNow(): void
  /** Closes and stays closed until `retryNow` or a new page. */
  disconnect(): void
  /**
   * Ends this device at the daemon, where that can be asked now, and removes the key and everything
   * this client stored in the browser. Whether the daemon said that it ended it.
   */
  forget(): Promise<boolean>

  /**
   * Asks once. While reconnecting it waits for the connection; a reading
   * request whose connection is lost is asked again, any other rejects with
   * `connection_lost`.
   */
  request<K extends Op>(
    op: K,
    args: Ops[K]['args'],
    options?: RequestOptions,
  ): Promise<Ops[K]['ok']>

  /** Sends a message exactly once, over reconnects as well. */
  send(
    message: { session: number; content: string; mode: 'queue' | 'steer' },
    options?: SendOptions,
  ): Promise<{ message_id: number; queued: boolean }>

  /**
   * Journal rows after `after`, then live ones, until the signal aborts. Goes
   * on by itself after a reconnect, where it was: nothing lost or doubled.
   */
  follow(
    from: { after: number; session?: number },
    options?: RequestOptions,
  ): AsyncIterable<FollowItem>

  openShell(args: {
    worker: string
    rows: number
    cols: number
    session?: number
  }): Promise<Terminal>
  attachShell(args: {
    worker: string
    shell: string
    rows: number
    cols: number
    /** Bytes of its output that are here already. */
    from?: number
  }): Promise<Terminal>

  download(
    args: { session: number; path: string; at?: number },
    options?: RequestOptions & { onProgress?: (received: number) => void },
  ): Promise<Download>
}
