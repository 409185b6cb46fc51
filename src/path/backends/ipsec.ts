// ipsec.ts - the ipsec backend: strongSwan's charon negotiates keys with each peer, and the kernel or charon carries the ESP packets.
//
// The lease, the policies, charon's connections and the error texts are those of flanneld (pkg/backend/ipsec). There is no device in the
// kernel's way, and no route: the policies decide which packets are encrypted.

import { WeftError } from '../../base/errors.ts'
import type { Log } from '../../base/log.ts'
import { carryIpv4Alone, ipv4For } from '../../control/config/network-config.ts'
import type { Ipv4Lease, LeaseAttrs } from '../../control/lease/lease.ts'
import type { Run } from '../../host/command.ts'
import { currentExternal } from '../../host/external-interface.ts'
import { formatIpv4, formatIpv4Net } from '../../net/ipv4.ts'
import { KINDS } from '../catalog.ts'
import type { Backend, BackendParts, DataPath, PathTraffic } from '../contract.ts'
import { watchExternal } from '../device/external-watch.ts'
import { ROUTE_WORDS } from '../device/route-sync.ts'
import { inTurn } from '../in-turn.ts'
import { createPeerFilter } from '../tunnel/peer-filter.ts'
import { Charon, findCharon, isCharonRunning } from './ipsec/charon.ts'
import { IpsecConnections, type PeerKeys } from './ipsec/connections.ts'
import { canKernelCarryEsp } from './ipsec/kernel-esp.ts'
import { IpsecPolicies, POLICY_CHANGES, type PolicyPeer } from './ipsec/policies.ts'
import { UnreachableNetwork } from './ipsec/unreachable-network.ts'

const TYPE = 'ipsec'
const NEEDS = `the ${TYPE} backend`
const { overhead } = KINDS.ipsec
/** The length of the UDP header in bytes, which option UDPEncap adds. */
const UDP_HEADER = 8
