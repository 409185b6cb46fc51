// rtnl.test.ts - a program holds the kernel's lock of all network devices (RTNL), as the deletion of a bridge does for seconds: weftd
// answers, forwards and stops meanwhile.

import { spawn, spawnSync } from 'node:child_process'
import { once } from 'node:events'
import { mkdirSync, mkdtempSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { setTimeout as delay } from 'node:timers/promises'
import { afterAll, afterEach, beforeAll, beforeEach, describe, expect, it } from 'vitest'
import { createLab, type Daemon, type Host, type Lab } from '../../lab/lab.ts'
import { reach } from '../../lab/measure.ts'
import { fetchStatus } from '../../src/tool/weft/daemon-client.ts'
import { promoted } from '../support/kernel-way.ts'
import { BUILD_MS, buildNative } from '../support/native-program.ts'
import { HOSTS, needs } from '../support/needs.ts'
import { pinging } from '../support/pinging.ts'

const lacks = needs(HOSTS, 'ping', 'g++')
/** How long in ms an answer of weftd may take. */
const ANSWER_MS = 1_000
const HELD_MS = 3_000
const UNSUPPORTED = 77

let folder: string
let program: string
/** True if the kernel lets a program hold the lock. */
let mayHold = true
let lab: Lab
const holding: (() => Promise<void>)[] = []

beforeAll(async () => {
  folder = mkdtempSync(join(tmpdir(), 'weft-rtnl-'))
  program = join(folder, 'hold_rtnl')
  if (lacks !== undefined) return
  await buildNative('hold_rtnl', program, [], [])
  const { status } = spawnSync(program, { stdio: ['ignore', 'ignore', 'inherit'] })
  mayHold = status !== UNSUPPORTED
}, BUILD_MS)
beforeEach(({ skip }) => {
  if (!mayHold) skip('the kernel has no userfaultfd, or refuses it to this process')
})
afterAll(() => rmSync(folder, { recursive: true, force: true }))
afterEach(async () => {
  for (const release of holding.splice(0)) await release()
  await lab?.close()
})

/** Holds the lock until the returned function is called. */
async function holdLock(): Promise<() => Promise<void>> {
  const child = spawn(program, { stdio: ['pipe', 'pipe', 'inherit'] })
  const exited = once(child, 'exit') as Promise<[number | null]>
  const release = async (): Promise<void> => {
    child.stdin.end()
    expect(await exited).toEqual([0, null])
  }
  holding.push(release)
  await Promise.race([once(child.stdout, 'data'), exited])
  expect(child.exitCode).toBeNull()
  return release
}

const start = (host: Host, args: readonly string[] = []): Daemon =>
  host.startDaemon({
    args: ['--lease-dir', join(lab.folder, 'leases'), ...args],
    env: { WIREGUARD_KEY_FILE: join(lab.folder, `${host.name}-wgkey`) },
  })

async function running(backend: object, args: readonly string[] = []) {
  lab = await createLab({ hosts: 2 })
  mkdirSync(join(lab.folder, 'leases'))
  writeFileSync(join(lab.folder, 'leases', 'config'), JSON.stringify({ Network: '10.5.0.0/16', Backend: backend }))
  const [here, there] = lab.hosts as [Host, Host]
  const [daemon, other] = [start(here, args), start(there, args)]
  await Promise.all([daemon, other].map((each) => each.line(/flannel is ready/)))
  const [from, to] = [await here.startPod(), await there.startPod()]
  await reach(from.namespace, to.address)
  return { here, daemon, from, to }
}

/** Makes the kernel report a change, after which weftd checks its data path. */
const change = (host: Host, name: string): Promise<string> =>
  host.output(['ip', 'link', 'add', name, 'type', 'veth', 'peer', 'name', `${name}p`])

interface Kind {
  readonly name: string
  readonly backend: object
  readonly args?: readonly string[]
}
const KINDS: readonly Kind[] = [
  { name: 'udp with FastPath', backend: { Type: 'udp', FastPath: 'auto' } },
  { name: 'udp by the engine dgram', backend: { Type: 'udp' }, args: ['--engine', 'dgram'] },
  { name: 'vxlan by weftd', backend: { Type: 'vxlan', DataPath: 'userspace' } },
  { name: 'vxlan by the kernel', backend: { Type: 'vxlan' } },
  { name: 'wireguard by weftd', backend: { Type: 'wireguard', DataPath: 'userspace' } },
  { name: 'host-gw', backend: { Type: 'host-gw' } },
]

describe('while a program holds the lock of all network devices', () => {
  it.each(KINDS)('weftd answers and forwards, with $name', async ({ backend, args }) => {
    const { here, daemon, from, to } = await running(backend, args)
    const pings = pinging(from, to, { everyS: 0.01 })
    await change(here, 'late0')
    const release = await holdLock()
    const end = performance.now() + HELD_MS
    while (performance.now() < end) {
      const asked = performance.now()
      await fetchStatus(here.statusSocket, AbortSignal.timeout(ANSWER_MS))
      expect(performance.now() - asked).toBeLessThan(ANSWER_MS)
      await delay(100)
    }
    await release()
    expect(await pings.stop()).toMatchObject({ lost: 0, errors: 0 })
    expect(daemon.lines.filter((line) => /^[EF]/.test(line))).toEqual([])
  })

  it('FastPath ends when an IPsec policy appears, and weftd answers and forwards on', async () => {
    const { here, daemon, from, to } = await running({ Type: 'udp', FastPath: 'auto' }, ['-v', '1'])
    await promoted(from, to.address, [daemon])
    const pings = pinging(from, to, { everyS: 0.01 })
    await change(here, 'late0')
    const release = await holdLock()
    const selector = ['src', '198.51.100.1/32', 'dst', '198.51.100.2/32', 'dir', 'out', 'action', 'block']
    await here.output(['ip', 'xfrm', 'policy', 'add', ...selector])
    await daemon.line(/FastPath: weftd carries all packets: this host has IPsec policies/)
    const end = performance.now() + HELD_MS
    while (performance.now() < end) {
      const { dataPath } = await fetchStatus(here.statusSocket, AbortSignal.timeout(ANSWER_MS))
      expect(dataPath?.fastPath).toMatchObject({ isActive: false, promoted: 0 })
      await delay(100)
    }
    await release()
    expect(await pings.stop()).toMatchObject({ lost: 0, errors: 0 })
  })

  it('weftd stops cleanly when the lock is free again', async () => {
    const { here, daemon } = await running({ Type: 'udp', FastPath: 'auto' })
    await change(here, 'late0')
    const release = await holdLock()
    const stopped = daemon.stop()
    await delay(2 * HELD_MS)
    await release()
    expect(await stopped).toBe(0)
    expect(daemon.lines.at(-1)).toMatch(/Exiting cleanly/)
  })
})
