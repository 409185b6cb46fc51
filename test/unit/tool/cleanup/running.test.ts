// running.test.ts - finds running weftd and flanneld processes of this network namespace in procfs.

import { chownSync, closeSync, mkdirSync, mkdtempSync, openSync, rmSync, symlinkSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterEach, beforeEach, expect, it } from 'vitest'
import { addon } from '../../../../src/host/addon.ts'
import { findLocking, findRunning } from '../../../../src/tool/cleanup/running.ts'
import { ModelKernel } from '../../../support/model-kernel.ts'

let proc: string
beforeEach(() => {
  proc = mkdtempSync(join(tmpdir(), 'proc-'))
  addProcess('self', 'node', 'here')
})
afterEach(() => rmSync(proc, { recursive: true }))

/** A process in a network namespace. Without a namespace it has just ended, and only its command line could be read. */
function addProcess(pid: string, command: string, namespace?: string): void {
  const folder = join(proc, pid)
  mkdirSync(join(folder, 'ns'), { recursive: true })
  writeFileSync(join(folder, 'cmdline'), command.split(' ').join('\0'))
  if (namespace !== undefined) symlinkSync(`net:[${namespace}]`, join(folder, 'ns/net'))
}

let kernel: ModelKernel
beforeEach(() => void (kernel = new ModelKernel()))
const running = (): Promise<string[]> => findRunning(kernel, proc)

it('lists the daemons of this namespace with their pids', async () => {
  addProcess('12', '/opt/bin/flanneld --iface eth0', 'here')
  addProcess('13', '/usr/bin/node /usr/bin/weftd', 'here')
  addProcess('14', '/opt/bin/flanneld', 'elsewhere')
  addProcess('15', '/usr/bin/flannel-watch', 'here')
  addProcess('16', '/usr/local/bin/node /opt/bin/flanneld', 'here')
  addProcess('17', 'weftd', 'here')
  expect((await running()).toSorted()).toEqual([
    'flanneld still runs (pid 12)',
    'flanneld still runs (pid 16)',
    'weftd still runs (pid 13)',
    'weftd still runs (pid 17)',
  ])
})

it('names an open TUN of flannel if no daemon is visible', async () => {
  const tun = { mode: 'tun', persist: true, isMultiQueue: false, openQueues: undefined } as const
  kernel.addLink({ name: 'flannel0', type: 'tun', tun })
  kernel.addLink({ name: 'flannel1', type: 'tun', tun, hasCarrier: false })
  expect(await running()).toEqual(['a process still forwards through flannel0'])
})

it('ignores a process that ends during the search', async () => {
  addProcess('12', '/usr/bin/node /usr/bin/weftd')
  expect(await running()).toEqual([])
})

it('counts a process of another user, whose namespace cannot be read, as one in this namespace', async () => {
  addProcess('12', '/opt/bin/flanneld')
  writeFileSync(join(proc, '12/ns/net'), 'no link: readlink(2) fails otherwise than for a process that ended')
  expect(await running()).toEqual(['flanneld still runs (pid 12)'])
})

it('notices a weftd that is not visible by its lock, and does not keep the lock', () => {
  const lock = join(proc, 'subnet.env.handover.lock')
  expect(findLocking(lock)).toEqual([])
  const fd = openSync(lock, 'a+')
  expect(findLocking(lock)).toEqual([])
  expect(addon.tryLockFile(fd)).toBe(true)
  expect(findLocking(lock)).toEqual([`a weftd still runs, which has locked ${lock}`])
  closeSync(fd)
  expect(findLocking(lock)).toEqual([])
})

it('ignores a program that has the name of a daemon, but not the right to change network devices', async () => {
  addProcess('12', 'flanneld --subnet-file=/dev/zero', 'here')
  writeFileSync(join(proc, '12/status'), 'Name:\tflanneld\nCapPrm:\t0000000000001000\nCapEff:\t0000000000000000\n')
  addProcess('13', 'weftd', 'here')
  writeFileSync(join(proc, '13/status'), 'Name:\tweftd\nCapEff:\t0000000000001000\n')
  // A user who makes a user namespace gets all capabilities in it.
  addProcess('14', 'flanneld', 'here')
  writeFileSync(join(proc, '14/status'), 'CapEff:\t000001ffffffffff\n')
  symlinkSync('user:[2]', join(proc, '14/ns/user'))
  symlinkSync('user:[1]', join(proc, 'self/ns/user'))
  expect(await running()).toEqual(['weftd still runs (pid 13)'])
})

it.each([
  [
    'notices a daemon of a rootless container, whose network namespace weft has entered',
    1234,
    ['flanneld still runs (pid 14)'],
  ],
  ['ignores a program of a user namespace in the network namespace of the host', 0, []],
])('%s', async (_what, owner, found) => {
  addProcess('14', 'flanneld', 'here')
  writeFileSync(join(proc, '14/status'), 'CapEff:\t000001ffffffffff\n')
  symlinkSync('user:[2]', join(proc, '14/ns/user'))
  symlinkSync('user:[1]', join(proc, 'self/ns/user'))
  mkdirSync(join(proc, 'sys/net/ipv4'), { recursive: true })
  writeFileSync(join(proc, 'sys/net/ipv4/ip_forward'), '1\n')
  if (process.getuid!() !== 0) return // only root may give files away
  chownSync(join(proc, 'sys/net/ipv4/ip_forward'), owner, owner)
  expect(await running()).toEqual(found)
})
