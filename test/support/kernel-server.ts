// kernel-server.ts - a program that reads, changes and watches the kernel of its network namespace for a test in another namespace.
//
// Requests arrive on stdin and answers leave on stdout, one a line: a value in the format of v8.serialize, in base64. The program ends with
// its stdin. remote-kernel.ts is the client.

import { createInterface } from 'node:readline'
import { deserialize, serialize } from 'node:v8'
import { WeftError } from '../../src/base/errors.ts'
import type { HostKernel } from '../../src/host/kernel.ts'
import { hostKernel } from '../../src/host/netlink/host-kernel.ts'

/** A request: a method of HostKernel and its arguments, the end of a watch, or the use of the CPU and of memory. */
export interface KernelRequest {
  readonly id: number
  readonly method: Exclude<keyof HostKernel, 'wireguard'> | 'unwatch' | 'usage'
  readonly args: readonly unknown[]
}

/** An error of the kernel as plain data, because v8.serialize keeps only the message of an error. */
export interface PlainError {
  readonly code: WeftError['code']
  readonly message: string
  readonly remedy: string | undefined
  readonly cause: unknown
}

/** An answer to the request `id`; or an event of the watch that the request began. */
export type KernelReply =
  | { readonly id: number; readonly value: unknown }
  | { readonly id: number; readonly error: PlainError | string }
  | { readonly id: number; readonly event: unknown; readonly isOwn: boolean }

/** The CPU time in ms and the memory in bytes that the program has used. */
export interface Usage {
  readonly cpuMs: number
  readonly bytes: number
}

const plain = ({ code, message, remedy, cause }: WeftError): PlainError => ({ code, message, remedy, cause })
const reply = (value: KernelReply): void => void process.stdout.write(`${serialize(value).toString('base64')}\n`)

const watches = new Map<number, AbortController>()

async function answer({ id, method, args }: KernelRequest): Promise<unknown> {
  if (method === 'unwatch') return watches.get(args[0] as number)?.abort()
  if (method === 'usage') {
    const { user, system } = process.cpuUsage()
    return { cpuMs: (user + system) / 1000, bytes: process.memoryUsage.rss() }
  }
  if (method === 'watch') {
    const over = new AbortController()
    watches.set(id, over)
    return hostKernel.watch(args[0] as never, (event, isOwn) => reply({ id, event, isOwn }), over.signal)
  }
  const call = hostKernel[method] as (...args: unknown[]) => Promise<unknown>
  const value = await call.apply(hostKernel, [...args])
  return method === 'change' ? (value as (WeftError | undefined)[]).map((error) => error && plain(error)) : value
}

createInterface(process.stdin).on('line', (line) => {
  const request = deserialize(Buffer.from(line, 'base64')) as KernelRequest
  answer(request).then(
    (value) => reply({ id: request.id, value }),
    (error: unknown) => reply({ id: request.id, error: error instanceof WeftError ? plain(error) : String(error) }),
  )
})
