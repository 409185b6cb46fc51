// remote-kernel.ts - the kernel of a lab's host, for a test that runs outside the host's network namespace.

import { spawn, type ChildProcess } from 'node:child_process'
import { join } from 'node:path'
import { createInterface } from 'node:readline'
import type { Writable } from 'node:stream'
import { deserialize, serialize } from 'node:v8'
import { packageRoot, type Place } from '../../lab/lab.ts'
import { WeftError } from '../../src/base/errors.ts'
import type { Change, HostKernel, KernelEvent, OnKernelEvent, Topic, WireguardState } from '../../src/host/kernel.ts'
import type { KernelReply, KernelRequest, PlainError, Usage } from './kernel-server.ts'

/**
 * The kernel of a place, through the program kernel-server.ts, which runs until the lab is closed. WireGuard devices are not supported,
 * because secret keys do not leave a process.
 */
export class RemoteKernel implements HostKernel {
  readonly #program: ChildProcess
  readonly #requests: Writable
  readonly #waiting = new Map<number, (reply: KernelReply) => void>()
  readonly #watchers = new Map<number, OnKernelEvent>()
  #last = 0

  constructor(place: Pick<Place, 'spawn'>) {
    this.#program = place.spawn([process.execPath, join(packageRoot, 'dist/test/support/kernel-server.js')], {
      stdin: true,
    })
    const { stdin, stdout } = this.#program
    if (!stdin || !stdout) throw new Error('the kernel server has no pipes')
    this.#requests = stdin
    createInterface(stdout).on('line', (line) => this.#take(deserialize(Buffer.from(line, 'base64')) as KernelReply))
  }

  links: HostKernel['links'] = (...args) => this.#call('links', args)
  link: HostKernel['link'] = (...args) => this.#call('link', args)
  sendDrops: HostKernel['sendDrops'] = (...args) => this.#call('sendDrops', args)
  routes: HostKernel['routes'] = (...args) => this.#call('routes', args)
  lookUp: HostKernel['lookUp'] = (...args) => this.#call('lookUp', args)
  rules: HostKernel['rules'] = (...args) => this.#call('rules', args)
  neighbours: HostKernel['neighbours'] = (...args) => this.#call('neighbours', args)
  forwarding: HostKernel['forwarding'] = (...args) => this.#call('forwarding', args)
  nftTables: HostKernel['nftTables'] = () => this.#call('nftTables', [])
  nftGeneration: HostKernel['nftGeneration'] = () => this.#call('nftGeneration', [])
  legacyTables: HostKernel['legacyTables'] = (...args) => this.#call('legacyTables', args)
  hasIpsecPolicies: HostKernel['hasIpsecPolicies'] = () => this.#call('hasIpsecPolicies', [])
  ipsec: HostKernel['ipsec'] = () => this.#call('ipsec', [])
  wireguard = (): Promise<WireguardState> => Promise.reject(new Error('not supported'))
  /** Returns the CPU time and the memory that the kernel server has used. */
  usage = (): Promise<Usage> => this.#call('usage', [])
  /** Stops the kernel server with SIGSTOP, so that it receives no reports until SIGCONT. */
  signal = (name: 'SIGSTOP' | 'SIGCONT'): boolean => this.#program.kill(name)

  async change(changes: readonly Change[]): Promise<readonly (WeftError | undefined)[]> {
    const errors = await this.#call<readonly (PlainError | undefined)[]>('change', [changes])
    return errors.map((error) => error && toError(error))
  }

  async watch(topics: readonly Topic[], onEvent: OnKernelEvent, signal: AbortSignal): Promise<void> {
    const id = this.#last + 1
    this.#watchers.set(id, onEvent)
    await this.#call('watch', [topics])
    const end = (): void => {
      this.#watchers.delete(id)
      void this.#call('unwatch', [id])
    }
    if (signal.aborted) end()
    else signal.addEventListener('abort', end, { once: true })
  }

  #call<T>(method: KernelRequest['method'], args: readonly unknown[]): Promise<T> {
    const id = ++this.#last
    this.#requests.write(`${serialize({ id, method, args } satisfies KernelRequest).toString('base64')}\n`)
    return new Promise((resolve, reject) => {
      this.#waiting.set(id, (reply) => {
        if ('value' in reply) resolve(reply.value as T)
        else if ('error' in reply)
          reject(typeof reply.error === 'string' ? new Error(reply.error) : toError(reply.error))
      })
    })
  }

  #take(reply: KernelReply): void {
    if ('event' in reply) return void this.#watchers.get(reply.id)?.(reply.event as KernelEvent, reply.isOwn)
    this.#waiting.get(reply.id)?.(reply)
    this.#waiting.delete(reply.id)
  }
}

/** Returns the kernel of a network namespace that `ip netns` lists, and its server, which the caller must kill. */
export function kernelOf(namespace: string): { readonly kernel: RemoteKernel; readonly server: ChildProcess } {
  const started: ChildProcess[] = []
  const kernel = new RemoteKernel({
    spawn(command) {
      const child = spawn('ip', ['netns', 'exec', namespace, ...command], { stdio: ['pipe', 'pipe', 'inherit'] })
      started.push(child)
      return child
    },
  })
  return { kernel, server: started[0]! }
}

const toError = ({ code, message, remedy, cause }: PlainError): WeftError =>
  new WeftError(code, message, { remedy, cause })
