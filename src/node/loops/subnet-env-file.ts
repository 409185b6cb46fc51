// subnet-env-file.ts - reads and writes subnet.env, from which Docker, CNI plugins and scripts read the node's subnet.
//
// The format is flanneld's to the byte (pkg/subnet/subnet.go, WriteSubnetFile).

import { readFile } from 'node:fs/promises'
import { dirname } from 'node:path'
import { parseEnv } from 'node:util'
import { messageOf, WeftError } from '../../base/errors.ts'
import type { Log } from '../../base/log.ts'
import { makeFolder } from '../../host/make-folder.ts'
import { replaceFile } from '../../host/replace-file.ts'
import type { Net, Nets } from '../../net/address.ts'
import { formatIpv4, formatIpv4Net, parseIpv4Net } from '../../net/ipv4.ts'
import { formatIpv6, formatIpv6Net, parseIpv6Net } from '../../net/ipv6.ts'

export interface SubnetEnv {
  readonly network: Nets
  readonly subnet: Nets
  /** The length in bytes of the longest packet that containers may send. */
  readonly mtu: number
  readonly ipMasq: boolean
}

/**
 * Formats the text of subnet.env. FLANNEL_SUBNET has the subnet's first host address, which the containers' bridge
 * gets.
 */
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

/** Writes subnet.env atomically with mode 0644, and makes its folder if necessary. Throws WeftError PERMISSION. */
export async function writeSubnetEnv(path: string, env: SubnetEnv): Promise<void> {
  try {
    await makeFolder(dirname(path))
    await replaceFile(path, formatSubnetEnv(env), 0o644)
  } catch (error) {
    throw new WeftError('PERMISSION', `cannot write ${path}: ${messageOf(error)}`, {
      remedy: 'make the directory writable, or name another file with --subnet-file',
      cause: error,
    })
  }
}

/** Returns true if the file subnet.env has exactly the content `env`. */
export async function holdsSubnetEnv(path: string, env: SubnetEnv): Promise<boolean> {
  const text = await readFile(path, 'utf8').catch(() => '')
  return text === formatSubnetEnv(env)
}

/**
 * The networks and subnets that an earlier run wrote to subnet.env, with host bits cleared. A family is undefined if
 * the file has no entry or several entries for it.
 */
export interface PreviousNets {
  readonly network: Nets
  readonly subnet: Nets
}

/**
 * Reads the subnet.env of an earlier run. Logs problems with the subnets in flanneld's words. A missing IPv6 subnet is
 * a problem only if the file has an IPv6 network. A missing IPv4 subnet is a problem unless the file has only IPv6.
 */
export async function readPreviousNets(path: string, log: Pick<Log, 'warn' | 'error'>): Promise<PreviousNets> {
  let text = ''
  let isFirst = false
  try {
    text = await readFile(path, 'utf8')
  } catch (error) {
    isFirst = (error as NodeJS.ErrnoException).code === 'ENOENT'
    if (!isFirst) log.error(`Couldn't fetch previous FLANNEL_SUBNET from subnet file at ${path}: ${messageOf(error)}`)
  }
  const values = parseEnv(text)
  const silent = { warn: () => {}, error: () => {} }
  const has6 = Boolean(values['FLANNEL_IPV6_NETWORK'] || values['FLANNEL_IPV6_SUBNET'])
  const has4 = !has6 || Boolean(values['FLANNEL_NETWORK'] || values['FLANNEL_SUBNET'])
  const read = <N extends Net>(
    key: string,
    parse: (text: string) => N | undefined,
    to: Pick<Log, 'warn' | 'error'>,
  ): N | undefined => theOnlyNet({ path, key, value: values[key] ?? '', parse, isFirst }, to)
  return {
    network: {
      ipv4: read('FLANNEL_NETWORK', parseIpv4Net, silent),
      ipv6: read('FLANNEL_IPV6_NETWORK', parseIpv6Net, silent),
    },
    subnet: {
      ipv4: read('FLANNEL_SUBNET', parseIpv4Net, has4 ? log : silent),
      ipv6: read('FLANNEL_IPV6_SUBNET', parseIpv6Net, has6 ? log : silent),
    },
  }
}

interface Value<N extends Net> {
  readonly path: string
  readonly key: string
  readonly value: string
  readonly parse: (text: string) => N | undefined
  /** True if the file does not exist yet, that is, before this host's first start of weftd. */
  readonly isFirst: boolean
}

function theOnlyNet<N extends Net>(
  { path, key, value, parse, isFirst }: Value<N>,
  log: Pick<Log, 'warn' | 'error'>,
): N | undefined {
  const nets: N[] = []
  for (const part of value === '' ? [] : value.split(',')) {
    const net = parse(part.trim())
    if (net) nets.push(net)
    else log.error(`Couldn't parse previous ${key} from subnet file at ${path}: invalid CIDR address: ${part}`)
  }
  if (nets.length === 0) log.warn(`no subnet found for key: ${key} in file: ${path}`, isFirst ? 'normal' : undefined)
  else if (nets.length > 1)
    log.error(`error reading subnet: more than 1 entry found for key: ${key} in file ${path}: ${value}`)
  return nets.length === 1 ? nets[0] : undefined
}
