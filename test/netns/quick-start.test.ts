// quick-start.test.ts - after a kill the next daemon forwards and becomes ready without a program of iproute2.

import { existsSync, mkdirSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { afterEach, expect, it } from 'vitest'
import { createLab, type Host, type Lab } from '../../lab/lab.ts'
import { countCalls } from '../support/calls.ts'
import { eventually } from '../support/event.ts'
import { HOSTS, needs } from '../support/needs.ts'

needs(HOSTS)

let lab: Lab
afterEach(() => lab?.close())

it.each([{ iface: ['--iface', 'eth0'] }, { iface: [] }])(
  'runs no program of iproute2 after a kill, with $iface',
  async ({ iface }) => {
    lab = await createLab({ hosts: 1 })
    const [host] = lab.hosts as [Host]
    const leases = join(lab.folder, 'leases')
    mkdirSync(leases)
    writeFileSync(join(leases, 'config'), '{"Network":"10.5.0.0/16","Backend":{"Type":"udp"}}')
    await host.run(['ip', 'route', 'add', 'default', 'via', '192.168.77.254'])
    const before = host.startDaemon({ args: ['--lease-dir', leases], iface })
    await before.line(/flannel is ready/)
    await eventually(() => expect(existsSync(`${host.subnetFile}.last-known`)).toBe(true))
    await before.stop('SIGKILL')

    const calls = ['ip', 'bridge'].map((program) => countCalls(lab, program))
    const env = { PATH: calls.map(({ env: { PATH } }) => PATH).join(':') }
    const next = host.startDaemon({ args: ['--lease-dir', leases], iface, env })
    await next.line(/Forwarding to 0 peers as last known/)
    await next.line(/flannel is ready/)
    const own = calls.flatMap(({ seen }) => seen()).filter((words) => !words.startsWith('netns exec')) // the lab's start
    expect(own).toEqual([])
  },
)
