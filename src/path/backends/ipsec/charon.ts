// charon.ts - finds strongSwan's IKE daemon charon on this host, or starts it as flanneld does (flannel:
// pkg/backend/ipsec/handle_charon.go).

import { spawn, type ChildProcess } from 'node:child_process'
import { once } from 'node:events'
import { accessSync, constants, existsSync } from 'node:fs'
import { mkdtemp, rm, writeFile } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { isWeftError, messageOf, WeftError } from '../../../base/errors.ts'
import type { Log } from '../../../base/log.ts'
import { limited, pause } from '../../../host/bell.ts'
import { childEnvironment, packageOf } from '../../../host/command.ts'
import { ownerOfSockets, socketsAt, tryUdpPort } from '../../../host/udp-ports.ts'
import { ViciClient } from './vici-client.ts'

/** The path of the socket for charon's control protocol VICI: strongSwan's default, which flanneld uses too. */
const SOCKET = '/var/run/charon.vici'
/** The folders in which flanneld searches for the program charon after the folders of PATH. */
const FOLDERS = ['/usr/lib/strongswan', '/usr/lib/ipsec', '/usr/libexec/strongswan', '/usr/libexec/ipsec']
/** charon's UDP ports: 500 for the key exchange, 4500 for the key exchange and ESP packets through NAT. */
const PORTS = [500, 4500]
/**
 * The variables of weftd's environment that charon gets. weftd does not pass its other variables, which may hold
 * secrets, such as the password of the store.
 */
const VARIABLES = ['LANG', 'TZ', 'LD_LIBRARY_PATH', 'OPENSSL_CONF', 'OPENSSL_MODULES', 'LEAK_DETECTIVE_DISABLE']
/** The program that makes charon end when weftd ends. */
const STARTER = 'setpriv'
const CONFIGURATIONS = ['/etc/strongswan.conf', '/etc/strongswan/strongswan.conf']
/**
 * How long, in ms, a started charon may take until it answers at its socket. LOOK_MS is the pause between two attempts
 * to connect.
 */
const START_MS = 30_000
const LOOK_MS = 50
/**
 * How long, in ms, weftd tries again to start charon. Just after a restart of weftd, the charon of the earlier run may
 * still be ending. AGAIN_MS is the pause between two attempts to start charon.
 */
const PREDECESSOR_MS = 5_000
const AGAIN_MS = 500
/** How long, in ms, charon may take to end after SIGTERM, so that it can inform its peers. */
const STOP_MS = 2_000

/**
 * Returns the path of the program charon. Throws WeftError COMMAND with flanneld's text if the host has no such
 * program.
 */
export function findCharon(path = childEnvironment()['PATH'] ?? ''): string {
  const found = findProgram('charon', [...path.split(':'), ...FOLDERS])
  if (found !== undefined) return found
  const paths = ['charon', ...FOLDERS.map((folder) => join(folder, 'charon'))]
  throw new WeftError('COMMAND', `no valid charon executable found at paths [${paths.join(' ')}]`, {
    remedy:
      'install strongSwan: on Debian the packages strongswan-charon, strongswan-swanctl, libstrongswan-standard-plugins and libcharon-extra-plugins',
  })
}

/** Throws WeftError COMMAND if the host lacks charon or the program that starts charon. */
export function checkPrograms(path = childEnvironment()['PATH'] ?? ''): void {
  findCharon(path)
  if (findProgram(STARTER, path.split(':')) === undefined)
    throw new WeftError('COMMAND', `${STARTER} is not installed`, {
      remedy: `install the package ${packageOf(STARTER)}`,
    })
}

function findProgram(name: string, folders: readonly string[]): string | undefined {
  return folders
    .map((folder) => join(folder, name))
    .find((place) => {
      try {
        accessSync(place, constants.X_OK)
        return true
      } catch {
        return false
      }
    })
}

/** Connects to the charon that runs on this host; undefined if no process answers on charon's socket. */
export async function connectRunning(signal: AbortSignal): Promise<ViciClient | undefined> {
  try {
    return await ViciClient.connect(SOCKET, signal)
  } catch (error) {
    if (!isWeftError(error)) throw error
    return undefined
  }
}

/** Returns true if a process answers at charon's socket, so that weftd need not start charon. */
export async function isCharonRunning(signal: AbortSignal): Promise<boolean> {
  const client = await connectRunning(signal)
  client?.close()
  return client !== undefined
}

export class Charon {
  readonly client: ViciClient
  /** The charon process that weftd started; undefined if charon was running already. */
  readonly #process: ChildProcess | undefined
  readonly #log: Log

  private constructor(client: ViciClient, process: ChildProcess | undefined, log: Log) {
    this.client = client
    this.#process = process
    this.#log = log
  }

  /**
   * Connects to the running charon, or starts a charon. If `isUserspace` is true, charon itself carries the ESP
   * packets, otherwise the kernel does. Throws WeftError.
   */
  static async start(isUserspace: boolean, log: Log, signal: AbortSignal): Promise<Charon> {
    const began = performance.now()
    for (;;) {
      try {
        return await Charon.#startOnce(isUserspace, log, signal)
      } catch (error) {
        // Try again, because a charon that is about to end may still accept connections, and prevents a new charon from
        // starting.
        if (signal.aborted || !isWeftError(error) || performance.now() - began > PREDECESSOR_MS) throw error
        await pause(signal, AGAIN_MS)
      }
    }
  }

  static async #startOnce(isUserspace: boolean, log: Log, signal: AbortSignal): Promise<Charon> {
    const running = await connectRunning(signal)
    if (running) {
      const charon = new Charon(running, undefined, log)
      await charon.#checkPlugins(isUserspace, signal)
      log.info('Using the charon daemon that runs on this host')
      return charon
    }
    await requirePorts()
    const { child, folder } = await startProcess(isUserspace, log)
    try {
      const client = await untilAnswering(child, signal)
      await removeFolder(folder, log) // charon has read its configuration
      const charon = new Charon(client, child, log)
      await charon.#checkPlugins(isUserspace, signal)
      log.info('Charon daemon started')
      return charon
    } catch (error) {
      await stopProcess(child)
      throw error
    }
  }

  /** Closes the connection to charon, and ends charon if weftd started it. */
  async stop(): Promise<void> {
    this.client.close()
    if (!this.#process) return
    await stopProcess(this.#process)
    this.#log.info('Stopped charon daemon')
  }

  /**
   * Throws WeftError CONFIG if charon's plugins do not match `isUserspace`: charon carries the ESP packets if and only
   * if its plugin kernel-libipsec is loaded.
   */
  async #checkPlugins(isUserspace: boolean, signal: AbortSignal): Promise<void> {
    const close = (): void => this.client.close()
    signal.addEventListener('abort', close)
    try {
      const { plugins } = await this.client.request('stats')
      const hasOwn = Array.isArray(plugins) && plugins.includes('kernel-libipsec')
      if (hasOwn === isUserspace) return
      throw new WeftError(
        'CONFIG',
        hasOwn
          ? 'the running charon carries ESP packets itself (its plugin kernel-libipsec is loaded), but the kernel must carry them'
          : 'the running charon lacks the plugin kernel-libipsec, which carries ESP packets where the kernel has no ESP',
        { remedy: 'change `load` in strongswan.d/charon/kernel-libipsec.conf, or stop charon so that weftd starts it' },
      )
    } catch (error) {
      close()
      throw error
    } finally {
      signal.removeEventListener('abort', close)
    }
  }
}

/**
 * Starts charon with a configuration file in the returned folder. The file includes the host's own configuration, and
 * loads the plugin kernel-libipsec only if `isUserspace` is true.
 */
async function startProcess(isUserspace: boolean, log: Log): Promise<{ child: ChildProcess; folder: string }> {
  const program = findCharon()
  const folder = await mkdtemp(join(tmpdir(), 'weft-charon-'))
  const file = join(folder, 'strongswan.conf')
  try {
    await writeFile(file, configuration(isUserspace, process.env['STRONGSWAN_CONF']))
  } catch (error) {
    await removeFolder(folder, log) // weftd tries again, and would leave a folder each time
    throw error
  }
  // Make charon end when weftd ends, even if weftd is killed. flanneld does the same.
  const child = spawn(STARTER, ['--pdeathsig', 'TERM', program], {
    stdio: ['ignore', 'inherit', 'inherit'],
    env: environmentOf(file),
  })
  child.once('error', (error) => log.error(`Error starting charon daemon: ${messageOf(error)}`))
  child.once('close', () => void removeFolder(folder, log))
  return { child, folder }
}

const removeFolder = (folder: string, log: Log): Promise<void> =>
  rm(folder, { recursive: true, force: true }).catch((error: unknown) => log.warn(messageOf(error)))

function environmentOf(file: string): NodeJS.ProcessEnv {
  const whole = childEnvironment()
  const kept = ['PATH', ...VARIABLES].filter((name) => whole[name] !== undefined)
  return { ...Object.fromEntries(kept.map((name) => [name, whole[name]])), STRONGSWAN_CONF: file }
}

/**
 * Throws WeftError if charon cannot open its UDP ports. Without its ports charon would run, but never negotiate keys.
 */
async function requirePorts(): Promise<void> {
  for (const port of PORTS) {
    const code = await tryUdpPort('ipv4', '0.0.0.0', port)
    if (code === 'EACCES')
      throw new WeftError('PERMISSION', `charon may not use UDP port ${port}`, {
        remedy: 'grant CAP_NET_BIND_SERVICE, or run charon as a service of its own',
      })
    if (code !== 'EADDRINUSE') continue
    const sockets = await socketsAt('ipv4', '0.0.0.0', port)
    const owner = await ownerOfSockets(new Set(sockets.map(({ inode }) => inode)))
    const where = `0.0.0.0:${port}`
    const by = owner === undefined ? '' : ` by ${owner}`
    throw new WeftError('PORT_IN_USE', `UDP port ${where} is taken${by}`, {
      remedy: `stop the program that \`ss -ulnp sport = :${port}\` shows, because the ipsec backend needs the port`,
    })
  }
}

/**
 * Returns a strongswan.conf that first includes the host's own configuration. The sections of weftd come after it,
 * because a later section overrides an earlier section.
 */
function configuration(isUserspace: boolean, given: string | undefined): string {
  const own = [given, ...CONFIGURATIONS].find((file) => file !== undefined && existsSync(file))
  return [
    ...(own === undefined ? [] : [`include ${own}`]),
    'charon {',
    // Make charon write each log line to stderr immediately. By default charon buffers its lines, and sends them to
    // syslog too.
    '  filelog {',
    '    stderr {',
    '      default = 1',
    '      flush_line = yes',
    '    }',
    '  }',
    '  plugins {',
    `    kernel-libipsec { load = ${isUserspace ? 'yes' : 'no'} }`,
    `    vici { socket = unix://${SOCKET} }`,
    // The plugin bypass-lan must not be loaded, because it makes policies that let packets to the host's own networks
    // pass unencrypted.
    '    bypass-lan { load = no }',
    '  }',
    '}',
    '',
  ].join('\n')
}

/**
 * Waits until charon answers at its socket. Throws WeftError COMMAND if charon ends before that, or does not answer
 * within START_MS.
 */
function untilAnswering(child: ChildProcess, signal: AbortSignal): Promise<ViciClient> {
  const late = (): WeftError => new WeftError('COMMAND', `charon does not answer on ${SOCKET}`, { remedy: SEE_LOG })
  return limited(signal, START_MS, late, async (limit) => {
    for (;;) {
      if (child.exitCode !== null || child.signalCode !== null || child.pid === undefined)
        throw new WeftError(
          'COMMAND',
          `charon ended at its start (${child.signalCode ?? child.exitCode ?? 'no process'})`,
          {
            remedy: SEE_LOG,
          },
        )
      try {
        return await ViciClient.connect(SOCKET, limit)
      } catch (error) {
        if (!isWeftError(error)) throw error
      }
      await pause(limit, LOOK_MS)
    }
  })
}

const SEE_LOG = "read charon's last lines in the log of weftd or in the system's log"

async function stopProcess(child: ChildProcess): Promise<void> {
  if (child.exitCode !== null || child.signalCode !== null || child.pid === undefined) return
  const ended = once(child, 'exit')
  child.kill('SIGTERM')
  const timer = setTimeout(() => child.kill('SIGKILL'), STOP_MS)
  await ended
  clearTimeout(timer)
}
