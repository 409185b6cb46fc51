// long-packets.test.ts - a host that accepts only shorter packets than the others send: it and each other host report it, and nothing else.
// The reports end once it accepts long packets again.

import { once } from 'node:events'
import { mkdirSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { afterAll, expect, it } from 'vitest'
import { ended } from '../../lab/command.ts'
import { createLab, type Host, type Lab } from '../../lab/lab.ts'
import { eventually } from '../support/event.ts'
import { doctor, statusOf, subnetOf, weft, weftOf } from '../support/hosts.ts'
import { HOSTS, needs } from '../support/needs.ts'

needs(HOSTS)

const labs: Lab[] = []
afterAll(() => Promise.all(labs.map((lab) => lab.close())))

/** Returns a host's reports on its paths to the others, by subnet. */
const pathsOf = async (host: Host) =>
  Object.fromEntries(
    ((await statusOf(host)).peers?.list ?? []).map(({ subnet, state, path, passesBytes }) => [
      subnet,
      state === 'answering' ? [path, passesBytes] : [state],
    ]),
  )

const BACKENDS = [
  // 1500 and 1400 bytes without the outer headers: IPv4 and UDP, and for VXLAN also VXLAN and Ethernet.
  [{ Type: 'udp' }, 1472, 1372],
  [{ Type: 'vxlan', DataPath: 'userspace' }, 1450, 1350],
  [{ Type: 'vxlan' }, 1450, 1350],
  [{ Type: 'host-gw' }, 1500, 1400],
] as const
it.concurrent.each(BACKENDS)(
  'every host reports the narrow path of %j, and reports no narrow path after the repair',
  async (Backend, whole, least) => {
    const lab = await createLab({ hosts: 3 })
    labs.push(lab)
    const leases = join(lab.folder, 'leases')
    mkdirSync(leases)
    writeFileSync(join(leases, 'config'), JSON.stringify({ Network: '10.5.0.0/16', Backend }))
    const daemons = lab.hosts.map((host) =>
      host.startDaemon({ args: ['--lease-dir', leases, '--probe-interval', '2'] }),
    )
    await Promise.all(daemons.map((daemon) => daemon.line(/flannel is ready/)))
    const [first, second, third] = lab.hosts as [Host, Host, Host]
    const [one, two, three] = lab.hosts.map((host) => subnetOf(host)) as [string, string, string]
    const areWhole = () =>
      eventually(async () => {
        for (const host of lab.hosts)
          expect(Object.values(await pathsOf(host))).toEqual([
            ['whole', whole],
            ['whole', whole],
          ])
      })
    await areWhole()
    expect((await weft(first, ['status'])).code).toBe(0)

    await third.output(['ip', 'link', 'set', 'eth0', 'mtu', '1400'])
    await eventually(async () => {
      expect(await pathsOf(first)).toEqual({ [two]: ['whole', whole], [three]: ['narrow', least] })
      expect(await pathsOf(second)).toEqual({ [one]: ['whole', whole], [three]: ['narrow', least] })
      // The host's own packets are shorter from now on, so they reach the others.
      expect(await pathsOf(third)).toEqual({ [one]: ['whole', least], [two]: ['whole', least] })
    })
    const said = await weft(first, ['status'])
    expect(said.code).toBe(3)
    expect(said.stdout).toContain(
      `100% whole for short packets, but long packets of more than ${least} of ${whole} bytes do not reach one peer`,
    )
    expect(said.stdout).toMatch(new RegExp(`^\\S+ +${three} .* narrow `, 'm'))
    const explained = await weft(first, ['explain', first.address, three.replace('.0/24', '.2')])
    expect([explained.code, explained.stdout]).toEqual([
      3,
      expect.stringMatching(
        new RegExp(`; packets of up to ${least} bytes pass\n[^]*\na long packet would not get through\n`),
      ),
    ])
    // Packets that were lost meanwhile are reported too, until later probes are answered.
    await eventually(async () => {
      const there = await doctor(first)
      expect([there.code, there.names]).toEqual([3, ['path-mtu']])
      expect(there.details).toEqual([
        expect.stringMatching(
          new RegExp(
            `${three}.* at .*: packets of ${whole} bytes .*, packets of up to ${least} do; other peers answer such packets: check`,
          ),
        ),
      ])
    })
    if (Backend.Type === 'udp') {
      const listener = third.spawn(weftOf(third, ['bench', '--listen']))
      await once(listener.stdout!, 'data')
      const words = ['bench', three, '--streams', '1', '--seconds', '0.2', '--pairs', '1']
      const measured = await weft(first, words)
      expect([measured.code, measured.stdout]).toEqual([
        3,
        expect.stringContaining(
          `inside the tunnel packets of ${whole} bytes get no answer, packets of up to ${least} do: the cause is the smaller MTU`,
        ),
      ])
      expect(measured.stdout).not.toContain('firewall')
      listener.kill('SIGTERM')
      await ended(listener)
    }
    const here = await doctor(third)
    expect([here.code, here.names, here.details]).toEqual([
      3,
      ['mtu-shrunk'],
      [`${least} bytes because the MTU of eth0 is 1400; it was ${whole} when weftd started`],
    ])
    await third.output(['ip', 'link', 'set', 'eth0', 'mtu', '1500'])
    await areWhole()
    expect((await weft(first, ['status'])).code).toBe(0)
  },
)
