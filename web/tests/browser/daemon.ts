/** The real daemon and real workers, with a home folder of their own and any free port. */

import { execFile, spawn, type ChildProcess } from "node:child_process";
import { mkdirSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { networkInterfaces, tmpdir } from "node:os";
import { join, resolve } from "node:path";
import { promisify } from "node:util";
import { expect } from "@playwright/test";

const BINARY = resolve(
  process.env["QUINTET_BIN"] ?? join(import.meta.dirname, "../../../target/debug/quintet"),
);
const AGENT = join(import.meta.dirname, "agent.py");

export class Daemon {
  readonly home: string;
  #process: ChildProcess | null = null;
  /** Workers, and commands that go on. */
  #others: ChildProcess[] = [];
  #url: string;
  #flags: string[];
  /** Origins of the links that it has made. */
  #invited: string[] = [];

  private constructor(address: string, flags: string[]) {
    this.#url = `http://${address}:0`;
    this.#flags = flags;
    this.home = mkdtempSync(join(tmpdir(), "quintet-web-"));
    const config = `[agents.tester]\ncommand = ["python3", ${JSON.stringify(AGENT)}]\ndescription = "Does what it is told"\n`;
    writeFileSync(join(this.home, "config.toml"), config);
    const skill = join(this.home, "skills", "morning");
    mkdirSync(skill, { recursive: true });
    writeFileSync(
      join(skill, "SKILL.md"),
      "---\nname: morning\ndescription: Says good morning\n---\nSay good morning.\n",
    );
  }

  static async start(address = "127.0.0.1", flags: string[] = []): Promise<Daemon> {
    const daemon = new Daemon(address, flags);
    await daemon.up();
    return daemon;
  }

  get url(): string {
    return this.#url;
  }

  /** Where a page may come from and what it may ask: this daemon, by each of its names. */
  get origins(): Set<string> {
    return new Set([...this.#invited, this.#url, this.#url.replace("127.0.0.1", "localhost")]);
  }

  /** Starts it, at the address it had before. */
  async up(): Promise<void> {
    const listen = ["up", "--listen", new URL(this.#url).host, ...this.#flags];
    const started = this.#spawn(...listen);
    this.#process = started;
    const log = heard(started);
    await expect
      .poll(
        () => {
          if (started.exitCode !== null) throw new Error(`the daemon ended: ${log()}`);
          return this.#look(started.pid);
        },
        { timeout: 20_000, intervals: [50] },
      )
      .not.toBe("");
    this.#url = this.#look(started.pid);
  }

  /** Starts a worker of this machine, with a folder of its own; returns when it is online. */
  async worker(id: string, ...more: string[]): Promise<void> {
    const started = this.#spawn("worker", "--daemon-id", id, ...more);
    this.#others.push(started);
    const log = heard(started);
    await expect
      .poll(
        () => {
          if (started.exitCode !== null) throw new Error(`the worker ended: ${log()}`);
          return log();
        },
        { timeout: 20_000, intervals: [50] },
      )
      .toContain(`online as ${id}`);
  }

  /** Ends it as a power cut would. */
  async kill(): Promise<void> {
    await this.#end("SIGKILL");
  }

  async stop(): Promise<void> {
    await this.endOthers();
    await this.#end("SIGTERM");
    rmSync(this.home, { recursive: true, force: true });
  }

  /** Runs a command that goes on until the daemon stops. */
  begin(...words: string[]): void {
    this.#others.push(this.#spawn(...words));
  }

  /** Ends the workers, and what was begun. */
  async endOthers(): Promise<void> {
    await Promise.all(this.#others.splice(0).map((other) => end(other, "SIGTERM")));
  }

  /** Runs a command of the program against this daemon. */
  async run(...words: string[]): Promise<string> {
    const { stdout } = await promisify(execFile)(BINARY, ["--home", this.home, ...words], {
      env: this.#env(),
    });
    return stdout;
  }

  async json<T>(...words: string[]): Promise<T> {
    return JSON.parse(await this.run(...words, "--json")) as T;
  }

  async pair(): Promise<{ code: string; url: string }> {
    const invitation = await this.json<{ code: string; url: string }>("pair");
    this.#invited.push(new URL(invitation.url).origin);
    return invitation;
  }

  #look(pid: number | undefined): string {
    try {
      const status = JSON.parse(readFileSync(join(this.home, "run/quintet.json"), "utf8")) as {
        pid: number;
        http: string;
      };
      return status.pid === pid ? status.http : "";
    } catch {
      return "";
    }
  }

  async #end(signal: NodeJS.Signals): Promise<void> {
    const running = this.#process;
    this.#process = null;
    if (running !== null) await end(running, signal);
  }

  #spawn(...words: string[]): ChildProcess {
    return spawn(BINARY, ["--home", this.home, ...words], {
      stdio: ["ignore", "pipe", "pipe"],
      env: this.#env(),
    });
  }

  /** Nothing of the person who runs the tests: no files of theirs, no settings, no keys. */
  #env(): NodeJS.ProcessEnv {
    return { PATH: process.env["PATH"], HOME: this.home, SHELL: "/bin/bash", LANG: "C.UTF-8" };
  }
}

/** What a process has printed so far. */
function heard(running: ChildProcess): () => string {
  let log = "";
  for (const stream of [running.stdout, running.stderr]) {
    stream?.on("data", (chunk: Buffer) => (log += chunk.toString()));
  }
  return () => log;
}

async function end(running: ChildProcess, signal: NodeJS.Signals): Promise<void> {
  if (running.exitCode !== null || running.signalCode !== null) return;
  const ended = new Promise((done) => running.once("exit", done));
  running.kill(signal);
  await ended;
}

/** An address of this machine that a phone of the same network could use, if there is a network. */
export function networkAddress(): string | undefined {
  const all = Object.values(networkInterfaces()).flatMap((addresses) => addresses ?? []);
  return all.find(({ internal, family }) => !internal && family === "IPv4")?.address;
}
