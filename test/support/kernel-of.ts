// kernel-of.ts - the kernel of a host of the lab: each call runs a process in the host's network namespace.

import { join } from 'node:path'
import { deserialize, serialize } from 'node:v8'
import type { Host } from '../../lab/lab.ts'
import type { HostKernel } from '../../src/host/kernel.ts'

const MODULE = join(import.meta.dirname, '../../dist/src/host/netlink/host-kernel.js')
/** Calls a function of the kernel that is in the command line, and prints its result. */
const SCRIPT = `
import { deserialize, serialize } from 'node:v8'
const { hostKernel } = await import(process.argv[1])
const [name, args] = deserialize(Buffer.from(process.argv[2], 'base64'))
process.stdout.write(serialize(await hostKernel[name](...args)).toString('base64'))
`

/** Returns the kernel in the network namespace of a host. Its `watch` cannot be used. */
export function kernelOf(host: Host): HostKernel {
  const call = async (name: string, args: readonly unknown[]): Promise<unknown> => {
    const words = serialize([name, args]).toString('base64')
    const answer = await host.output([process.execPath, '--input-type=module', '-e', SCRIPT, MODULE, words])
    return deserialize(Buffer.from(answer, 'base64'))
  }
  const handler = {
    get:
      (_: unknown, name: string) =>
      (...args: unknown[]) =>
        call(name, args),
  }
  return new Proxy<Partial<HostKernel>>({}, handler) as HostKernel
}
