// systemd.test.ts - deploy/weftd.service in a real systemd: when it counts as started, and what restarts it.

import { join } from 'node:path'
import { afterEach, describe, expect, it } from 'vitest'
import { ended } from '../../lab/command.ts'
import { startEtcd, type Etcd } from '../../lab/etcd.ts'
import { createLab, type Host, type Lab } from '../../lab/lab.ts'
import { reach } from '../../lab/measure.ts'
import { watchHandshakes } from '../support/handshakes.ts'
import { ETCD, HOSTS, needs } from '../support/needs.ts'
import { pinging } from '../support/pinging.ts'
import { freezeThread } from '../support/service-manager.ts'
import { bootSystemd, hasSystemd, type Systemd } from '../support/systemd.ts'

needs(HOSTS, ...ETCD, 'python3', 'tcpdump')

let lab: Lab | undefined
let etcd: Etcd | undefined
let systemd: Systemd | undefined
afterEach(async () => {
  await systemd?.close()
  await lab?.close()
  await etcd?.close()
  systemd = lab = etcd = undefined
})

async function until(name: string, value: RegExp): Promise<void> {
  await expect.poll(() => systemd!.property(name), { interval: 200 }).toMatch(value)
}

describe('the unit', () => {
  it('is started when subnet.env exists, outlives its etcd, is restarted when a thread hangs, and stops', async ({
    skip,
  }) => {
    skip(!hasSystemd, 'no systemd, or no cgroups of version 2')
    lab = await createLab({ hosts: 1 })
    const [host] = lab.hosts
    etcd = await startEtcd({ namespace: `${lab.id}-switch`, address: '192.168.77.254' })
    // The unit's own watchdog is used. A shorter one would end a daemon that waits on a busy machine.
    systemd = await bootSystemd(host!, [
      `Environment=FLANNELD_ETCD_ENDPOINTS=${etcd.endpoint} FLANNELD_SUBNET_FILE=/run/flannel/subnet.env`,
      // The unit has this line as a comment.
      'ExecStartPost=+/opt/node /opt/weft/bin/weft docker-opts',
    ])

    await systemd.systemctl('start', '--no-block', 'weftd')
    await until('StatusText', /^starting; waiting for the network configuration in the etcd store$/)
    expect(await systemd.property('ActiveState')).toBe('activating')
    // The Debian package is upgraded: the new daemon must wait for etcd, dpkg must not.
    const waiting = await systemd.mainPid()
    const upgrade = await systemd.run('timeout', '20', 'sh', '/opt/weft/deploy/deb/postinst', 'configure', '0.0.1')
    expect(upgrade).toMatchObject({ code: 0 })
    await expect.poll(() => systemd!.mainPid().catch(() => waiting), { interval: 200 }).not.toBe(waiting)
    await until('StatusText', /^starting; waiting for the network configuration in the etcd store$/)
    await etcd.ctl('put', '/coreos.com/network/config', '{"Network":"10.5.0.0/16"}')
    await until('ActiveState', /^active$/)
    expect(systemd.read('/run/flannel/subnet.env')).toMatch(/^FLANNEL_NETWORK=10\.5\.0\.0\/16\nFLANNEL_SUBNET=10\.5\./)
    expect(systemd.read('/run/docker_opts.env')).toMatch(/^DOCKER_OPTS=" --bip=10\.5\./m)
    await until('StatusText', /^subnet 10\.5\.\d+\.0\/24, 0 peers, etcd store reachable$/)

    await etcd.kill()
    await until('StatusText', /, etcd store unreachable$/)
    const pid = await systemd.mainPid()
    const served = await systemd.property('WatchdogTimestampMonotonic')
    await expect.poll(() => systemd!.property('WatchdogTimestampMonotonic'), { interval: 200 }).not.toBe(served)
    expect([await systemd.property('NRestarts'), await systemd.mainPid()]).toEqual(['0', pid])
    await etcd.start()
    await until('StatusText', /, etcd store reachable$/)

    const thaw = await freezeThread(host!, pid, 'weft-loop0')
    await until('StatusText', /the thread weft-loop0 hangs/)
    await until('SubState', /^stop-watchdog$/)
    await thaw() // an aborted process stays until its tracer exits
    await until('NRestarts', /^1$/)
    await until('ActiveState', /^active$/)
    await until('StatusText', /^subnet 10\.5\.\d+\.0\/24, 0 peers, etcd store reachable$/)
    expect(await systemd.mainPid()).not.toBe(pid)

    // The Debian package is removed while the unit is masked.
    await systemd.run('mv', '/etc/systemd/system/weftd.service', '/usr/lib/systemd/system')
    for (const verb of ['enable', 'mask']) await systemd.systemctl(verb, 'weftd')
    const link = '/etc/systemd/system/multi-user.target.wants/weftd.service'
    expect(await systemd.run('test', '-L', link)).toMatchObject({ code: 0 })
    expect(await systemd.run('sh', '/opt/weft/deploy/deb/prerm', 'remove')).toMatchObject({ code: 0 })
    expect(await systemd.run('test', '-L', link)).toMatchObject({ code: 1 })
    expect([await systemd.property('ActiveState'), await systemd.property('Result')]).toEqual(['inactive', 'success'])
    expect(systemd.read('/run/flannel/subnet.env')).toBeDefined()
    expect((await host!.run(['ip', 'link', 'show', 'flannel0'])).code).not.toBe(0)
  })

  const IPV6 = { EnableIPv6: true, IPv6Network: 'fd00:5::/48', Backend: { Type: 'vxlan', DataPath: 'userspace' } }
  const WIREGUARD = { Backend: { Type: 'wireguard', DataPath: 'userspace' } }
  const RESTARTED = [
    ['IPv4 by udp', ['ipv4'], {}, 'flannel0', '1472'],
    ['IPv4 by WireGuard, whose keys are kept too', ['ipv4'], WIREGUARD, 'flannel-wg', '1420'],
    ['both families by vxlan, with a path for each', ['ipv4', 'ipv6'], IPV6, 'flannel.1', '1430'],
  ] as const
  it.for(RESTARTED)('loses no packet over a restart: %s', async ([, families, network, device, mtu], { skip }) => {
    skip(!hasSystemd, 'no systemd, or no cgroups of version 2')
    lab = await createLab({ hosts: 2, families })
    const [a, b] = lab.hosts as [Host, Host]
    etcd = await startEtcd({ namespace: `${lab.id}-switch`, address: '192.168.77.254' })
    await etcd.ctl('put', '/coreos.com/network/config', JSON.stringify({ Network: '10.5.0.0/16', ...network }))
    systemd = await bootSystemd(a, [
      `Environment=FLANNELD_ETCD_ENDPOINTS=${etcd.endpoint} FLANNELD_SUBNET_FILE=/run/flannel/subnet.env`,
    ])
    await systemd.systemctl('start', 'weftd')
    const env = { WIREGUARD_KEY_FILE: join(lab.folder, 'wgkey') }
    const peer = b.startDaemon({ args: ['--etcd-endpoints', etcd.endpoint], env })
    await peer.line(/flannel is ready/)
    const given = systemd.read('/run/flannel/subnet.env')!
    const [gateway, ipv6Gateway] = ['SUBNET', 'IPV6_SUBNET'].map(
      (name) => new RegExp(`^FLANNEL_${name}=(.*)`, 'm').exec(given)?.[1],
    )
    const [from, to] = [await a.startPod({ gateway: gateway!, ipv6Gateway, mtu }), await b.startPod()]
    const addresses = [to.address, to.ipv6].filter((address) => address !== undefined)
    expect(addresses).toHaveLength(families.length)
    for (const address of addresses) await reach(from.namespace, address)
    const pid = await systemd.mainPid()

    const initiations = network === WIREGUARD ? await watchHandshakes(b) : undefined
    // The queue of the TUN device holds 4,000 packets, which is 20 s of these pings: a busy machine needs more than 4 s to start a program.
    const pings = addresses.map((address) => pinging(from, to, { address, everyS: 0.005 }))
    for (let restart = 0; restart < 3; restart++) await systemd.systemctl('restart', 'weftd')
    for (const each of pings) {
      const { sent, lost } = await each.stop()
      expect(lost).toBe(0)
      expect(sent).toBeGreaterThan(100)
    }
    expect(await systemd.mainPid()).not.toBe(pid)
    expect((await initiations?.()) ?? 0).toBe(0)
    // Each daemon took the stored descriptors, and systemd keeps none while it runs.
    expect(await systemd.property('NFileDescriptorStore')).toBe('0')

    // systemd does not restart a daemon after --leave.
    const leaving = a.spawn([
      'nsenter',
      '--target',
      String(await systemd.mainPid()),
      '--mount',
      '--pid',
      '/opt/node',
      '/opt/weft/bin/weftd',
      '--leave',
      '--subnet-file',
      '/run/flannel/subnet.env',
    ])
    await ended(leaving)
    expect(leaving.exitCode).toBe(0)
    await until('StatusText', /weftd --leave; waiting to be stopped$/)
    expect((await a.run(['ip', 'link', 'show', device])).code).not.toBe(0)
    expect([await systemd.property('ActiveState'), await systemd.property('NRestarts')]).toEqual(['active', '0'])
    await systemd.systemctl('stop', 'weftd')
    expect(await systemd.property('Result')).toBe('success')
  })

  it('stops before flanneld starts, and starts after flanneld has stopped', async ({ skip }) => {
    skip(!hasSystemd, 'no systemd, or no cgroups of version 2')
    lab = await createLab({ hosts: 1 })
    systemd = await bootSystemd(lab.hosts[0]!, ['Environment=FLANNELD_LEASE_DIR=/run/weft/leases'])
    const flanneld = '[Service]\nExecStart=sleep infinity\nExecStop=sleep 1\n'
    const prepare = [
      `printf '${flanneld}' > /etc/systemd/system/flanneld.service`,
      'mkdir -p /run/weft/leases',
      `echo '{"Network":"10.5.0.0/16"}' > /run/weft/leases/config`,
    ]
    expect(await systemd.run('sh', '-ec', prepare.join('\n'))).toMatchObject({ code: 0 })
    await systemd.systemctl('daemon-reload')
    const at = async (unit: string, event: string): Promise<number> =>
      Number(await systemd!.systemctl('show', unit, '--value', '--property', `${event}TimestampMonotonic`))
    const others = { flanneld: 'weftd', weftd: 'flanneld' }
    await systemd.systemctl('start', 'flanneld')
    for (const unit of ['weftd', 'flanneld', 'weftd'] as const) {
      await systemd.systemctl('start', unit)
      expect(await at(others[unit], 'InactiveEnter')).toBeLessThanOrEqual(await at(unit, 'ExecMainStart'))
    }
  })

  it.for([
    ['a flag that there is not', 'ExecStart=/opt/node /opt/weft/bin/weftd --nonsense'],
    ['a value that cannot be, in a variable', 'Environment=FLANNELD_ENGINE=warp'],
  ] as const)('is not restarted with %s', async ([, line], { skip }) => {
    skip(!hasSystemd, 'no systemd, or no cgroups of version 2')
    lab = await createLab({ hosts: 1 })
    const command = line.startsWith('ExecStart=') ? ['ExecStart='] : []
    systemd = await bootSystemd(lab.hosts[0]!, [...command, line])
    // The job fails with this error.
    await expect(systemd.systemctl('start', 'weftd')).rejects.toThrow(/exit-code|control process|failed/)
    await until('ActiveState', /^failed$/)
    const state = ['Result', 'ExecMainStatus', 'NRestarts'].map((name) => systemd!.property(name))
    expect(await Promise.all(state)).toEqual(['exit-code', '2', '0'])
  })
})
