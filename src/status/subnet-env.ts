// subnet-env.ts - the file that Docker, the CNI plugin and scripts read the node's subnet from.
//
// Bytes and order of flanneld's (pkg/subnet/subnet.go WriteSubnetFile).

import { mkdir, readFile } from 'node:fs/promises'
import { dirname } from 'node:path'
import { parseEnv } from 'node:util'
import { messageOf, WeftError } from '../errors.ts'
import type { Log } from '../log.ts'
import type { Nets } from '../net/address.ts'
import { formatIpv4, formatIpv4Net, parseIpv4Net, type Ipv4Net } from '../net/ipv4.ts'
import { formatIpv6, formatIpv6Net } from '../net/ipv6.ts'
import { replaceFile } from '../host/replace-file.ts'

export interface SubnetEnv {
  readonly network: Nets
  readonly subnet: Nets
  /** Bytes. */
  readonly mtu: number
  readonly ipMasq: boolean
}

/** The file's text. FLANNEL_SUBNET is the subnet's first host address, for the bridge. */
export function formatSubnetEnv({ network, subnet, mtu, ipMasq }: SubnetEnv): string {
  return [
    ...(network.ipv4 ? [`FLANNEL_NETWORK=${formatIpv4Net(network.ipv4)}`] : []),
    ...(subnet.ipv4 ? [`FLANNEL_SUBNET=${formatIpv4(subnet.ipv4.address + 1)}/${subnet.ipv4.prefixLength}`] : []),
    ...(network.ipv6 ? [`FLANNEL_IPV6_NETWORK=${formatIpv6Net(network.ipv6)}`] : []),
    ...(subnet.ipv6 ? [`FLANNEL_IPV6_SUBNET=${formatIpv6(subnet.ipv6.address + 1n)}/${subnet.ipv6.prefixLength}`] : []),
    `FLANNEL_MTU=${mtu}`,
    `FLANNEL_IPMASQ=${ipMasq}`,
    '',
  ].join('\n')
}

/** Writes the file atomically, mode 0644, making its directory. Throws WeftError PERMISSION. */
export async function writeSubnetEnv(path: string, env: SubnetEnv): Promise<void> {
  try {
    await mkdir(dirname(path), { recursive: true, mode: 0o755 })
    await replaceFile(path, formatSubnetEnv(env), 0o644)
  } catch (error) {
    throw new WeftError('PERMISSION', `cannot write ${path}: ${messageOf(error)}`, {
      remedy: 'make the directory writable, or name another file with --subnet-file',
      cause: error,
    })
  }
}

/** Whether the file says exactly this. */
export async function holdsSubnetEnv(path: string, env: SubnetEnv): Promise<boolean> {
  const text = await readFile(path, 'utf8').catch(() => '')
  return text === formatSubnetEnv(env)
}

/** The networks in a value such as `10.244.1.0/24,10.244.2.0/24`; what is none is left out and named to `onBad`. */
function parseNetList(value: string, onBad: (text: string) => void): Ipv4Net[] {
  const nets: Ipv4Net[] = []
  for (const part of value.split(',')) {
    const net = parseIpv4Net(part.trim())
    if (net) nets.push(net)
    else onBad(part)
  }
  return nets
}

/** What an earlier run wrote, host bits cleared; of a family nothing when there is none, or more than one. */
export interface PreviousNets {
  readonly network: Nets
  readonly subnet: Nets
}

/** Reads what an earlier run wrote. What is odd is said in upstream's words, of the subnet alone. */
export async function readPreviousNets(path: string, log: Pick<Log, 'warn' | 'error'>): Promise<PreviousNets> {
  let text = ''
  try {
    text = await readFile(path, 'utf8')
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code !== 'ENOENT')
      log.error(`Couldn't fetch previous FLANNEL_SUBNET from subnet file at ${path}: ${messageOf(error)}`)
  }
  const { FLANNEL_NETWORK: networks = '', FLANNEL_SUBNET: subnets = '' } = parseEnv(text)
  const silent = { warn: () => {}, error: () => {} }
  return {
    network: { ipv4: theOnlyNet(path, 'FLANNEL_NETWORK', networks, silent) },
    subnet: { ipv4: theOnlyNet(path, 'FLANNEL_SUBNET', subnets, log) },
  }
}

function theOnlyNet(path: string, key: string, value: string, log: Pick<Log, 'warn' | 'error'>): Ipv4Net | undefined {
  const bad = (part: string): void =>
    log.error(`Couldn't parse previous ${key} from subnet file at ${path}: invalid CIDR address: ${part}`)
  const nets = value === '' ? [] : parseNetList(value, bad)
  if (nets.length === 0) log.warn(`no subnet found for key: ${key} in file: ${path}`)
  else if (nets.length > 1)
    log.error(`error reading subnet: more than 1 entry found for key: ${key} in file ${path}: ${value}`)
  return nets.length === 1 ? nets[0] : undefined
}
