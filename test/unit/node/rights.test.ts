// rights.test.ts - what is tried before a lease is taken.

import { expect, it, vi } from 'vitest'
import { selinuxRemedy } from '../../../src/host/kernel-errors.ts'
import { requireRights, type Rights } from '../../../src/node/rights.ts'

vi.mock('../../../src/host/kernel-errors.ts', { spy: true })

const tunNames = ['flannel%d']
const refusal = (code: string): NodeJS.ErrnoException => Object.assign(new Error(code), { code })

/** A host that gives these capabilities, and refuses the TUN with this. */
const host = (capabilities: string, code?: string): Rights => ({
  status: async () => `Name:\tweftd\nCapInh:\t0000000000000000\nCapEff:\t${capabilities}\n`,
  openTun: () => (code === undefined ? Promise.resolve() : Promise.reject(refusal(code))),
})
const ALL = '000001ffffffffff'
const DOCKER = '00000000a80425fb' // the default of containers, without CAP_NET_ADMIN

it.each([
  ['udp', tunNames],
  ['vxlan', undefined],
  ['host-gw', undefined],
  ['ipip', undefined],
  ['wireguard', ['flannel-wg']],
])('asks for CAP_NET_ADMIN before %s', async (name, names) => {
  const backend = { name, tunNames: names }
  await expect(requireRights(backend, host(DOCKER))).rejects.toMatchObject({
    code: 'PERMISSION',
    message: expect.stringContaining('it lacks the capability CAP_NET_ADMIN'),
  })
  await requireRights(backend, host(ALL))
  await requireRights(backend, host('0000000000001000'))
})

it.each(['alloc', 'extension'])('needs no capability before %s', (name) =>
  requireRights({ name, tunNames: undefined }, host('0000000000000000', 'ENOENT')),
)

it.each([
  ['ENOENT', 'cannot be opened', 'modprobe tun'],
  ['ENODEV', 'cannot be opened', 'modprobe tun'],
  ['EPERM', 'may not be opened', '--device /dev/net/tun'],
  ['EACCES', 'may not be opened', '--device /dev/net/tun'],
])('opens the TUN if the backend needs one: %s', async (code, message, remedy) => {
  await expect(requireRights({ name: 'udp', tunNames }, host(ALL, code))).rejects.toMatchObject({
    code: 'NO_TUN',
    message: `/dev/net/tun ${message} (${code})`,
    remedy: expect.stringContaining(remedy),
  })
  // The kernel carries the packets.
  await requireRights({ name: 'vxlan', tunNames: undefined }, host(ALL, code))
})

it('lets the kernel refuse if the capabilities cannot be read', async () => {
  const status = (): Promise<string> => Promise.reject(refusal('EACCES'))
  await requireRights({ name: 'udp', tunNames }, { ...host(DOCKER), status })
  await requireRights({ name: 'udp', tunNames }, { ...host(DOCKER), status: async () => 'CapEff: junk' })
})

it.each([
  ['EACCES', 'SELinux may forbid it; otherwise '],
  ['EPERM', ''], // from the cgroup of a container, which can deny devices
])('names SELinux if it may forbid the TUN: %s', async (code, beginning) => {
  vi.mocked(selinuxRemedy).mockReturnValue('SELinux may forbid it')
  await expect(requireRights({ name: 'udp', tunNames }, host(ALL, code))).rejects.toMatchObject({
    remedy: expect.stringMatching(new RegExp(`^${beginning}(allow the device|run as root)`)) as string,
  })
})
