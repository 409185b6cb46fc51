// following.test.ts - what others do to the host's links, addresses and routes is noticed and mended within a second.

import { mkdirSync, readdirSync, readFileSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { createInterface } from 'node:readline'
import { setTimeout as delay } from 'node:timers/promises'
import { afterEach, beforeEach, describe, expect, it } from 'vitest'
import { createLab, type Daemon, type Host, type Lab } from '../../lab/lab.ts'
import { reach } from '../../lab/measure.ts'

const TRIES = 20
const MENDED_MS = 1_000
/** A data path that dies younger than this is opened again only after a pause. */
const SETTLED_MS = 1_000

let lab: Lab
let daemon: Daemon
let a: Host
let b: Host
let leases: string
const tunAddress = (host: Host): string => (host.subnetEnv()['FLANNEL_SUBNET'] ?? '').replace(/\.1\/\d+$/, '.0')

beforeEach(async () => {
  lab = await createLab({ hosts: 2 })
  leases = join(lab.folder, 'leases')
  mkdirSync(leases)
  writeFileSync(join(leases, 'config'), '{"Network":"10.5.0.0/16","Backend":{"Type":"udp"}}')
  const daemons = lab.hosts.map((host) => host.startDaemon({ args: ['--lease-dir', leases] }))
  await Promise.all(daemons.map((each) => each.line(/flannel is ready/)))
  daemon = daemons[0]!
  ;[a, b] = lab.hosts as [Host, Host]
  await reach(a.namespace, tunAddress(b))
})
afterEach(() => lab.close())

/** Pings from a to b every 20 ms, from a's overlay address so that nothing else can carry them. */
function pinging(): { answer(): Promise<void>; stop(): void } {
  const child = a.spawn(['ping', '-n', '-i', '0.02', '-I', tunAddress(a), tunAddress(b)])
  child.stderr?.resume()
  let heard: (() => void) | undefined
  createInterface({ input: child.stdout! }).on('line', (line) => {
    if (line.includes('bytes from')) heard?.()
  })
  return {
    async answer() {
      await new Promise<void>((resolve) => (heard = resolve))
      heard = undefined
    },
    stop: () => void child.kill(),
  }
}

describe('within a second, 20 of 20 times, traffic goes on after', () => {
  it.each([
    ['the device was deleted', ['link', 'del', 'flannel0'], SETTLED_MS],
    ['its address was flushed', ['address', 'flush', 'dev', 'flannel0'], 0],
    ['its route was removed', ['route', 'del', '10.5.0.0/16'], 0],
  ])(
    '%s',
    async (title, command, settleMs) => {
      const pings = pinging()
      const took: number[] = []
      try {
        await pings.answer()
        for (let number = 0; number < TRIES; number++) {
          await delay(settleMs)
          const from = performance.now()
          await a.output(['ip', ...command])
          await delay(20) // an answer that was under way
          await pings.answer()
          took.push(Math.round(performance.now() - from))
        }
      } finally {
        pings.stop()
      }
      console.log(`${title}: traffic again after ${took.toSorted((x, y) => x - y).join(' ')} ms`)
      expect(took.filter((ms) => ms > MENDED_MS)).toEqual([])
      expect(daemon.lines.filter((line) => line.includes('Repaired:')).length).toBeLessThanOrEqual(10)
    },
    60_000,
  )
})

describe('the external interface', () => {
  it('has another MTU: the overlay and subnet.env follow', async () => {
    await a.output(['ip', 'link', 'set', 'eth0', 'mtu', '1400'])
    await expect.poll(() => a.subnetEnv()['FLANNEL_MTU'], { timeout: MENDED_MS }).toBe('1372')
    expect(await a.output(['ip', 'link', 'show', 'dev', 'flannel0'])).toContain('mtu 1372')
    await reach(a.namespace, tunAddress(b))
  })

  it('has another address: the lease keeps its subnet and says the new one', async () => {
    const subnets = join(leases, 'subnets')
    const before = readdirSync(subnets).toSorted()
    const own = before.find((key) => key.startsWith(tunAddress(a)))!
    await a.output(['ip', 'address', 'add', '192.168.77.101/24', 'dev', 'eth0'])
    await a.output(['ip', 'address', 'del', '192.168.77.1/24', 'dev', 'eth0'])
    await a.output(['ip', 'address', 'replace', '192.168.77.101/24', 'dev', 'eth0'])
    await expect
      .poll(() => readFileSync(join(subnets, own), 'utf8'), { timeout: 2 * MENDED_MS })
      .toBe('{"PublicIP":"192.168.77.101","PublicIPv6":null}')
    expect(readdirSync(subnets).toSorted()).toEqual(before)
    await reach(a.namespace, tunAddress(b))
  })

  it('goes down and up again: traffic goes on', async () => {
    await a.output(['ip', 'link', 'set', 'eth0', 'down'])
    await delay(300)
    await a.output(['ip', 'link', 'set', 'eth0', 'up'])
    await reach(a.namespace, tunAddress(b))
    expect(daemon.lines.filter((line) => / E|^E/.test(line))).toEqual([])
  })
})
