// quick-start.test.ts - counts the commands that a daemon runs after a kill before it forwards, because packets are lost meanwhile.

import { chmodSync, existsSync, mkdirSync, readFileSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { afterEach, expect, it } from 'vitest'
import { createLab, type Host, type Lab } from '../../lab/lab.ts'
import { eventually } from '../support/event.ts'
import { HOSTS, needs } from '../support/needs.ts'

needs(HOSTS)

let lab: Lab
afterEach(() => lab?.close())

it.each([{ iface: ['--iface', 'eth0'] }, { iface: [] }])(
  'runs ip once before it forwards after a kill, with $iface',
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

    const [folder, calls] = [join(lab.folder, 'bin'), join(lab.folder, 'calls')]
    mkdirSync(folder)
    const { PATH = '' } = process.env
    writeFileSync(join(folder, 'ip'), `#!/bin/sh\nprintf '%s\\n' "$*" >> '${calls}'\nPATH='${PATH}' exec ip "$@"\n`)
    chmodSync(join(folder, 'ip'), 0o755)
    const next = host.startDaemon({
      args: ['--lease-dir', leases],
      iface,
      before: ['env', `PATH=${folder}:${PATH}`],
    })
    await next.line(/Forwarding to 0 peers as last known/)
    const asked = readFileSync(calls, 'utf8').split('\n')
    // The device is adjusted after the engine runs.
    const since = asked.findIndex((call) => call.startsWith('link set dev flannel0 '))
    expect(asked.slice(0, since)).toEqual(['-j -d -batch -'])
    await next.line(/flannel is ready/)
  },
)
