// service-manager.ts - plays systemd's part: receives what a daemon sends to NOTIFY_SOCKET. It can also stop one of a process's threads.
//
// Node can neither listen on a Unix datagram socket nor trace a thread; Python, which building the addon needs anyway,
// can do both.

import { once } from 'node:events'
import { readdirSync, readFileSync } from 'node:fs'
import { createInterface } from 'node:readline'
import { EVENT_MS, type Host } from '../../lab/lab.ts'

/** With SO_PASSCRED systemd identifies the sender (systemd.service(5), NotifyAccess). */
const LISTEN = String.raw`
import json, socket, struct, sys
name = sys.argv[1]
listener = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
listener.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
listener.bind('\0' + name[1:] if name[0] == '@' else name)
print(json.dumps({'lines': ['listening'], 'pid': 0}), flush=True)
while True:
    text, controls, _, _ = listener.recvmsg(4096, 256)
    pid = next(struct.unpack('3i', data)[0] for level, kind, data in controls if kind == socket.SCM_CREDENTIALS)
    print(json.dumps({'lines': text.decode().split('\n'), 'pid': pid}), flush=True)
`

/** ptrace(2): PTRACE_SEIZE and PTRACE_INTERRUPT stop a single thread, like a system call that never returns. */
const FREEZE = String.raw`
import ctypes, os, sys
ptrace = ctypes.CDLL(None, use_errno=True).ptrace
ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]
def call(request):
    if ptrace(request, int(sys.argv[1]), None, None) < 0:
        raise OSError(ctypes.get_errno(), 'ptrace')
SEIZE, INTERRUPT, DETACH, WALL = 0x4206, 0x4207, 17, 0x40000000
call(SEIZE)
call(INTERRUPT)
os.waitpid(int(sys.argv[1]), WALL)
print('frozen', flush=True)
sys.stdin.read()
try:
    call(DETACH)
except ProcessLookupError:
    pass # its process was killed, and waits for us to let go
print('thawed', flush=True)
`

/** A datagram that the service manager received. */
interface Notice {
  readonly lines: readonly string[]
  /** The sender's pid, from the kernel. */
  readonly pid: number
}

export interface ServiceManager {
  /** All notices that were received so far. */
  readonly notices: readonly Notice[]
  /** Resolves with the first notice with a matching line. It may have arrived already, or arrive within a minute. */
  notice(pattern: RegExp): Promise<Notice>
  /** Resolves with the next notice that has a matching line, within a minute. */
  nextNotice(pattern: RegExp): Promise<Notice>
}

/** Listens on a Unix datagram socket, a path or `@` and a name, until the host's lab ends. */
export async function startServiceManager(host: Host, socket: string): Promise<ServiceManager> {
  const child = host.spawn(['python3', '-c', LISTEN, socket])
  child.stderr?.pipe(process.stderr)
  const notices: Notice[] = []
  const listeners = new Set<(notice: Notice) => void>()
  const matches = ({ lines }: Notice, pattern: RegExp): boolean => lines.some((line) => pattern.test(line))
  const next = (pattern: RegExp): Promise<Notice> =>
    new Promise((resolve, reject) => {
      const timer = setTimeout(() => {
        listeners.delete(listener)
        const received = notices.map(({ lines }) => lines.join('; ')).slice(-20)
        reject(new Error(`${EVENT_MS} ms passed before ${String(pattern)} arrived; the last:\n${received.join('\n')}`))
      }, EVENT_MS)
      const listener = (notice: Notice): void => {
        if (!matches(notice, pattern)) return
        clearTimeout(timer)
        listeners.delete(listener)
        resolve(notice)
      }
      listeners.add(listener)
    })
  const listening = next(/^listening$/)
  createInterface({ input: child.stdout! }).on('line', (line) => {
    const notice = JSON.parse(line) as Notice
    if (notice.pid > 0) notices.push(notice)
    for (const listener of listeners) listener(notice)
  })
  await listening
  return {
    notices,
    notice: async (pattern) => notices.find((notice) => matches(notice, pattern)) ?? next(pattern),
    nextNotice: next,
  }
}

/** Returns the names of a process's threads, by id. */
export function threadNames(pid: number): Map<string, string> {
  return new Map(
    readdirSync(`/proc/${pid}/task`).map((id) => [id, readFileSync(`/proc/${pid}/task/${id}/comm`, 'utf8').trim()]),
  )
}

/** Stops one thread of a process and no other; resolves when it has stopped, with a function that resumes it. */
export async function freezeThread(host: Host, pid: number, name: string): Promise<() => Promise<void>> {
  const id = [...threadNames(pid)].find(([, threadName]) => threadName === name)?.[0]
  if (id === undefined) throw new Error(`process ${pid} has no thread ${name}`)
  const child = host.spawn(['python3', '-c', FREEZE, id], { stdin: true })
  child.stderr?.pipe(process.stderr)
  const lines = createInterface({ input: child.stdout! })
  const say = async (word: string): Promise<void> => {
    const [line] = (await Promise.race([once(lines, 'line'), once(child, 'exit')])) as [unknown]
    if (line !== word) throw new Error(`the thread ${name} was not ${word}`)
  }
  await say('frozen')
  return async () => {
    child.stdin!.end()
    await say('thawed')
  }
}
