// udp.ts - the flagship: a TUN device on one side, a UDP socket on the other, raw IP packets in the datagrams.
//
// Port and wire format are flanneld's (pkg/backend/udp), so that both can be in one network.

import { WeftError } from '../errors.ts'
import { backendOptions } from '../config/backend-options.ts'
import { currentExternal } from '../host/external-interface.ts'
import type { LeaseAttrs } from '../lease/lease.ts'
import type { Backend } from './backend.ts'
import { verifySource } from './strangers.ts'
import { checkNetwork, openTunnel, type TunnelOptions } from './tunnel.ts'

const DEFAULT_PORT = 8285
/** Outer IPv4 header and UDP header. */
const ENCAP_BYTES = 28
const TUN_NAME = 'flannel%d'

/** The UDP port from the `Backend` object; throws WeftError CONFIG when it is none. */
export function udpPort(backend: Readonly<Record<string, unknown>>): number {
  const entry = Object.entries(backend).find(([key]) => key.toLowerCase() === 'port')
  const port = entry?.[1] ?? DEFAULT_PORT
  if (typeof port !== 'number' || !Number.isInteger(port) || port < 0 || port > 65535) {
    throw new WeftError('CONFIG', `Backend.Port is ${JSON.stringify(port)}`, {
      remedy: 'give it a number from 1 to 65535',
    })
  }
  return port === 0 ? DEFAULT_PORT : port
}

export function createUdpBackend(options: TunnelOptions): Backend {
  const { config, log, run } = options
  let { external } = options
  const port = udpPort(config.backend)
  const { flag } = backendOptions(config.backend)
  const asked = {
    verifySource: verifySource(config.backend),
    clampMss: flag('ClampMSS'),
    probePathMtu: flag('ProbePathMTU'),
  }
  return {
    name: 'udp',
    tunName: TUN_NAME,
    async prepare(): Promise<LeaseAttrs> {
      external = await currentExternal(run, external)
      checkNetwork('udp', config, external.address, log)
      // No backend type: flanneld's udp publishes none, and the bytes must be the same.
      return { publicIp: external.publicIp, backendType: '' }
    },
    open: (lease, _signal, leases) => {
      const mtu = external.mtu - ENCAP_BYTES
      const kind = { encapsulation: 'udp', tunName: TUN_NAME, port, mtu, ...asked } as const
      return openTunnel({ ...options, external }, kind, lease, leases)
    },
  }
}
