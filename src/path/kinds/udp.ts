// udp.ts - the flagship: a TUN device on one side, a UDP socket on the other, raw IP packets in the datagrams.
//
// Port and wire format are flanneld's (pkg/backend/udp), so that both can be in one network.

import { currentExternal } from '../../host/external-interface.ts'
import { KINDS } from '../kinds.ts'
import type { LeaseAttrs } from '../../control/lease/lease.ts'
import type { Backend } from '../backend.ts'
import { ipv4For } from '../../control/config/network-config.ts'
import { familiesOf } from '../../net/address.ts'
import { checkNetwork, openTunnel, type TunnelOptions } from '../ways/tunnel.ts'

const { overhead, outside, devices } = KINDS.udp
const [[, TUN_NAME]] = devices
const WHO = 'the udp backend'

export function createUdpBackend(options: TunnelOptions<'udp'>): Backend {
  const { config, settings, log, run } = options
  let { external } = options
  const port = settings.port || outside.port
  return {
    name: 'udp',
    tunName: TUN_NAME,
    async prepare(): Promise<LeaseAttrs> {
      external = await currentExternal(run, external)
      ipv4For(WHO, config)
      checkNetwork(config, external.address, log)
      // The backend type is empty: flanneld's udp publishes none, and the bytes must be the same.
      return { publicIp: external.publicIp, backendType: '' }
    },
    open: (lease, _signal, leases) => {
      const mtu = external.mtu - overhead
      const carried = { families: familiesOf(config), outer: 'ipv4' } as const
      const kind = { encapsulation: 'udp', ...carried, overhead, tunName: TUN_NAME, port, mtu } as const
      return openTunnel({ ...options, external }, kind, lease, leases)
    },
  }
}
