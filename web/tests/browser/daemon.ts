/** The real daemon, with a home folder of its own and any free port. */

import { execFile, spawn, type ChildProcess } from "node:child_process";
import { mkdirSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
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
  #address = "127.0.0.1:0";

  private constructor() {
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

  static async start(): Promise<Daemon> {
    const daemon = new Daemon();
    await daemon.up();
    return daemon;
  }

  get url(): string {
    return `http://${this.#address}`;
  }

  /** Starts it, at the address it had before. */
  async up(): Promise<void> {
    const started = spawn(BINARY, ["--home", this.home, "up", "--listen", this.#address], {
      stdio: ["ignore", "pipe", "pipe"],
    });
    this.#process = started;
    let log = "";
    started.stderr.on("data", (chunk: Buffer) => (log += chunk.toString()));
    started.stdout.on("data", (chunk: Buffer) => (log += chunk.toString()));
    await expect
      .poll(
        () => {
          if (started.exitCode !== null) throw new Error(`the daemon ended: ${log}`);
          return this.#look(started.pid);
        },
        { timeout: 20_000, intervals: [50] },
      )
      .not.toBe("");
    this.#address = this.#look(started.pid);
  }

  /** Ends it as a power cut would. */
  async kill(): Promise<void> {
    await this.#end("SIGKILL");
  }

  async stop(): Promise<void> {
    await this.#end("SIGTERM");
    rmSync(this.home, { recursive: true, force: true });
  }

  /** Runs a command of the program against this daemon. */
  async run(...words: string[]): Promise<string> {
    const { stdout } = await promisify(execFile)(BINARY, ["--home", this.home, ...words]);
    return stdout;
  }

  async json<T>(...words: string[]): Promise<T> {
    return JSON.parse(await this.run(...words, "--json")) as T;
  }

  pair(): Promise<{ code: string; url: string }> {
    return this.json("pair");
  }

  #look(pid: number | undefined): string {
    try {
      const status = JSON.parse(readFileSync(join(this.home, "run/quintet.json"), "utf8")) as {
        pid: number;
        http: string;
      };
      return status.pid === pid ? status.http.replace(/^https?:\/\//, "") : "";
    } catch {
      return "";
    }
  }

  async #end(signal: NodeJS.Signals): Promise<void> {
    const running = this.#process;
    this.#process = null;
    if (running === null || running.exitCode !== null) return;
    const ended = new Promise((done) => running.once("exit", done));
    running.kill(signal);
    await ended;
  }
}
