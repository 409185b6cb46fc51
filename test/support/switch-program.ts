// switch-program.ts - a switch as a program: an HTTP API (fake-switch.ts) whose routes are those of the kernel in its namespace.
//
// Arguments: the address and port to listen on, the file with the credential, and the prefix of the hosts' addresses. Prints `ready`, then
// each change. What `ip` has as routes of the protocol `static` is what the API has, as on a switch.

import { execFileSync } from 'node:child_process'
import { FakeSwitch } from './fake-switch.ts'

const [host = '', port = '', credentialFile = '', prefix = ''] = process.argv.slice(2)

class KernelSwitch extends FakeSwitch {
  override addressOf(node: number): string {
    return `${prefix}${node}`
  }
}

const ip = (...words: string[]): string => execFileSync('ip', words, { encoding: 'utf8' })
const listed = ip('route', 'show', 'proto', 'static')
const fabric = new KernelSwitch(credentialFile, (routes) => {
  ip('route', 'flush', 'proto', 'static')
  for (const { destination, node } of routes)
    ip('route', 'add', destination, 'via', `${prefix}${node}`, 'proto', 'static')
  process.stdout.write(`${fabric.changes.at(-1) ?? 'no change'}\n`)
})
for (const [, destination = '', node = ''] of listed.matchAll(/^(\S+) via [\d.]+\.(\d+) /gm))
  fabric.add(destination, Number(node))
await fabric.start(host, Number(port))
process.stdout.write('ready\n')
