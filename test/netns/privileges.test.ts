// privileges.test.ts - what the README and the unit file grant is enough: CAP_NET_ADMIN and /dev/net/tun.

import { chmodSync, readFileSync } from 'node:fs'
import { dirname } from 'node:path'
import { afterEach, describe, expect, it } from 'vitest'
import { startEtcd, type Etcd } from '../../lab/etcd.ts'
import { createLab, type Lab } from '../../lab/lab.ts'
import { ping, reach } from '../../lab/measure.ts'

let lab: Lab | undefined
let etcd: Etcd | undefined
afterEach(async () => {
  await lab?.close()
  await etcd?.close()
  lab = etcd = undefined
})

const ONLY = ['--bounding-set', '-all,+net_admin', '--inh-caps', '-all,+net_admin', '--no-new-privs']
const ROOT = ['setpriv', ...ONLY]
/** A user who owns nothing; the device is one that everybody may open, as distributions make it. */
const NOBODY = [
  ...['unshare', '--mount', 'sh', '-c'],
  'mount -t tmpfs tmpfs /dev/net && mknod -m 666 /dev/net/tun c 10 200 && chmod 666 /dev/net/tun && exec "$@"',
  ...['sh', 'setpriv', '--reuid', '65534', '--regid', '65534', '--clear-groups', '--ambient-caps', '+net_admin'],
  ...ONLY,
]
const NET_ADMIN = 1n << 12n

describe('with CAP_NET_ADMIN alone', () => {
  it.each(['native', 'dgram'])('root and a user without a name exchange packets by the %s engine', async (engine) => {
    lab = await createLab({ hosts: 2 })
    etcd = await startEtcd({ namespace: `${lab.id}-switch`, address: '192.168.77.254' })
    await etcd.ctl('put', '/coreos.com/network/config', '{"Network":"10.5.0.0/16"}')
    // The other user's subnet.env.
    chmodSync(lab.folder, 0o755)
    chmodSync(dirname(lab.hosts[1]!.subnetFile), 0o777)
    const args = ['--etcd-endpoints', etcd.endpoint, '--engine', engine]
    const daemons = lab.hosts.map((host, index) => host.startDaemon({ args, before: index === 0 ? ROOT : NOBODY }))
    await Promise.all(daemons.map((daemon) => daemon.line(/flannel is ready/)))

    for (const [index, daemon] of daemons.entries()) {
      // Each command in front became the next by exec, so the pid is weftd's.
      const status = readFileSync(`/proc/${daemon.process.pid}/status`, 'utf8')
      for (const set of ['CapPrm', 'CapEff', 'CapBnd'])
        expect(BigInt(`0x${new RegExp(`^${set}:\t(.*)$`, 'm').exec(status)![1]}`), set).toBe(NET_ADMIN)
      expect(/^Uid:\t(\d+)/m.exec(status)![1]).toBe(index === 0 ? '0' : '65534')
    }

    const pods = await Promise.all(lab.hosts.map((host) => host.startPod()))
    await reach(pods[0]!.namespace, pods[1]!.address)
    expect(await ping(pods[0]!.namespace, pods[1]!.address)).toHaveLength(3)
    expect(daemons.flatMap((daemon) => daemon.lines.filter((line) => line.startsWith('E')))).toEqual([])
    for (const daemon of daemons) expect(await daemon.stop()).toBe(0)
  })
})
