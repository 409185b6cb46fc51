// ipsec.ts - the ipsec backend: strongSwan's charon negotiates keys with each peer, and the kernel or charon carries
// the ESP packets.
//
// The lease, the IPsec policies, charon's connections and the error texts are those of flanneld (pkg/backend/ipsec). If
// the kernel carries the packets, weftd makes no device and no route, because the IPsec policies decide which packets
// are encrypted.

import { describeError, isWeftError, WeftError } from '../../base/errors.ts'
import type { Log } from '../../base/log.ts'
import { carryIpv4Alone, ipv4For } from '../../control/config/network-config.ts'
import type { Lease, LeaseAttrs, OwnLease } from '../../control/lease/lease.ts'
import type { Run } from '../../host/command.ts'
import { currentExternal } from '../../host/external-interface.ts'
import { formatAddress, formatNet, type Net } from '../../net/address.ts'
import { KINDS } from '../catalog.ts'
import type { Backend, BackendParts, DataPath } from '../contract.ts'
import { IpsecPolicies, POLICY_CHANGES, removePolicies } from '../device/ipsec-policies.ts'
import { removeUserspaceGuard, UserspaceGuard } from '../device/userspace-guard.ts'
import { Charon, checkPrograms, isCharonRunning } from './ipsec/charon.ts'
import { IpsecConnections } from './ipsec/connections.ts'
import { createFilter, hostWithin, IpsecPath } from './ipsec/ipsec-path.ts'
import { canKernelCarryEsp } from './ipsec/kernel-esp.ts'
import { leaveCharon } from './ipsec/leave-charon.ts'

const TYPE = 'ipsec'
const NEEDS = `the ${TYPE} backend`
const { overhead } = KINDS.ipsec
/** The length in bytes of the UDP header that the option UDPEncap adds to each ESP packet. */
const UDP_HEADER = 8
/**
 * The MTU in bytes of the device of charon's plugin kernel-libipsec (strongSwan:
 * src/libstrongswan/networking/tun_device.c).
 */
const USERSPACE_MTU = 1400

export function createIpsecBackend({
  config,
  settings,
  external: found,
  run,
  kernel,
  log,
}: BackendParts<'ipsec'>): Backend {
  const { psk, udpEncap, espProposal, dataPath } = settings
  let external = found
  let isUserspace: boolean | undefined
  log.info(`IPSec config: UDPEncap=${udpEncap} ESPProposal=${espProposal}`)

  return {
    name: TYPE,
    devices: [],
    usesIpsec: true,
    get external() {
      return external
    },
    async prepare(signal): Promise<LeaseAttrs> {
      external = await currentExternal(kernel, external)
      carryIpv4Alone(NEEDS, config, log)
      const isRunning = await isCharonRunning(signal)
      if (!isRunning) checkPrograms()
      isUserspace ??= await doesCharonCarry(dataPath, isRunning, run, log)
      const host = ownHost()
      if (host !== undefined) checkHost(host, isUserspace, log)
      return { publicIp: external.publicIp, backendType: TYPE }
    },
    plan: () => [
      {
        families: ['ipv4'],
        mtu: mtuOf(),
        external: { families: ['ipv4'], isBound: true },
        watched: POLICY_CHANGES,
        open,
      },
    ],
    withdraw: (_lease, signal) => withdraw(ipv4For(NEEDS, config).network, log, signal),
  }

  /**
   * Returns the MTU in bytes that containers get. This is flanneld's value, or less if charon carries the ESP packets:
   * charon always sends them in UDP datagrams, and its device has a smaller MTU.
   */
  function mtuOf(): number {
    if (isUserspace) return Math.min(external.mtu - overhead - UDP_HEADER, USERSPACE_MTU)
    return external.mtu - overhead - (udpEncap ? UDP_HEADER : 0)
  }

  /**
   * Returns this host's address if it is within the flannel network. In that case the IPsec policies must also match
   * the packets that hosts send to each other.
   */
  function ownHost(): string | undefined {
    return hostWithin(ipv4For(NEEDS, config).network, ipv4For(NEEDS, external.publicIp), external.address.ipv4)
  }

  async function open(lease: OwnLease, _leases: ReadonlyMap<string, Lease>, signal: AbortSignal): Promise<DataPath> {
    const { network } = ipv4For(NEEDS, config)
    const own = {
      subnet: formatNet(ipv4For(NEEDS, lease.subnet)),
      host: formatAddress(ipv4For(NEEDS, external.publicIp)),
    }
    const isUserland = isUserspace === true
    const guard = isUserland
      ? new UserspaceGuard(network, () => external.name, kernel)
      : new IpsecPolicies({ network: formatNet(network), own, hasHosts: ownHost() !== undefined, run, log })
    const connections = new IpsecConnections({
      network,
      own,
      psk,
      espProposal,
      udpEncap,
      isUserspace: isUserland,
      start: (stop) => Charon.start(isUserland, log, stop),
      log,
    })
    // First make the kernel block unencrypted packets. Then remove the blocking policies or routes that an earlier run
    // left for the other carrier (kernel or charon), because they would block all packets.
    await guard.block()
    await (isUserland ? removePolicies(run, network) : removeUserspaceGuard(kernel, network))
    await connections.open(signal)
    const filter = createFilter(TYPE, { lease, network, log })
    return new IpsecPath({ filter, guard, connections, isUserspace: isUserland, log })
  }
}

/**
 * Returns true if charon carries the packets, and false if the kernel does. Uses the configured choice. Without a
 * configured choice, chooses the kernel if it supports ESP, and otherwise charon. With `"DataPath": "kernel"` and a
 * running charon, weftd does not check that the kernel supports ESP.
 */
async function doesCharonCarry(
  dataPath: 'kernel' | 'userspace' | undefined,
  isRunning: boolean,
  run: Run,
  log: Log,
): Promise<boolean> {
  if (dataPath === 'userspace') {
    log.info('ESP packets are carried by charon: DataPath is userspace')
    return true
  }
  if ((dataPath === 'kernel' && isRunning) || (await canKernelCarryEsp(run))) {
    log.info('ESP packets are carried by the kernel')
    return false
  }
  if (dataPath === 'kernel')
    throw new WeftError('CONFIG', 'the kernel has no ESP (CONFIG_INET_ESP), and "DataPath" is "kernel"', {
      remedy: 'leave out "DataPath", so that charon carries the packets, or use a kernel with ESP',
    })
  log.info('ESP packets are carried by charon: the kernel has no ESP')
  return true
}

/**
 * Removes the connections and shared keys of a flannel network from the charon that runs on this host. Returns a
 * description of each removed object. Logs a failure.
 */
async function withdraw(network: Net, log: Log, signal: AbortSignal): Promise<readonly string[]> {
  try {
    return (await leaveCharon([network], signal)).map((name) => `the connection ${name} of charon`)
  } catch (error) {
    if (!isWeftError(error)) throw error
    log.error(`The connections of charon stay: ${describeError(error)}`)
    return []
  }
}

/**
 * Warns if this host's address is within the network. Throws WeftError CONFIG instead if charon carries the packets:
 * weftd then makes an unreachable route to the network, which would cut off the hosts.
 */
function checkHost(host: string, isUserspace: boolean, log: Log): void {
  if (isUserspace)
    throw new WeftError(
      'CONFIG',
      `${host} of this host is within the network, and "DataPath": "userspace" would cut off the host`,
      { remedy: 'choose a network that contains no address of a host' },
    )
  log.warn(
    `${host} of this host is within the network: packets of the host itself to other nodes' containers can leave unencrypted`,
  )
}
