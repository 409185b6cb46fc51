// docker-opts.ts - `weft docker-opts`: converts subnet.env to options for Docker, as flannel's mk-docker-opts.sh does.
// For IPv4 the output equals the script's to the byte. For IPv6, which the script does not support, the output has the
// corresponding Docker options.

import { readFile, writeFile } from 'node:fs/promises'
import { dirname } from 'node:path'
import { parseArgs, parseEnv } from 'node:util'
import { messageOf, WeftError } from '../../base/errors.ts'
import type { HostKernel } from '../../host/kernel.ts'
import { makeFolder } from '../../host/make-folder.ts'
import { hostKernel } from '../../host/netlink/host-kernel.ts'
import { familyOf, formatNet, type Net } from '../../net/address.ts'
import { parseIpv4Net } from '../../net/ipv4.ts'
import { parseIpv6Net } from '../../net/ipv6.ts'

export const DOCKER_OPTS_HELP = `Usage: weft docker-opts [-f FILE] [-d FILE] [-i] [-c] [-m] [-k KEY]

Writes options for Docker's daemon from subnet.env. Without -i and -c it writes both forms.

  -f FILE  the file to read (default /run/flannel/subnet.env); FLANNEL_* variables of the environment supply missing values
  -d FILE  the file to write (default /run/docker_opts.env)
  -i       one variable for each option: DOCKER_OPT_BIP, DOCKER_OPT_IPMASQ, DOCKER_OPT_MTU,
           and with IPv6 DOCKER_OPT_FIXED_CIDR_V6 and DOCKER_OPT_IPV6
  -c       one variable for all options
  -k KEY   the name of that variable (default DOCKER_OPTS)
  -m       without --ip-masq

Keeps options that the environment already has, as DOCKER_OPT_* or in the variable of -k.
`

/**
 * Writes the file with Docker's options. Throws WeftError USAGE for invalid arguments or variables, and PERMISSION if a
 * file cannot be read or written. If the host has a route to the subnet through a gateway, writes the file and then
 * throws ADDRESS, as flannel's script does.
 */
export async function dockerOpts(
  args: readonly string[],
  environment: Readonly<Record<string, string | undefined>>,
  kernel: HostKernel = hostKernel,
): Promise<void> {
  const wish = readArguments(args)
  const env = { ...environment, ...parseEnv(await readIfThere(wish.from)) }
  const text = formatDockerOpts(env, wish)
  try {
    await makeFolder(dirname(wish.to))
    await writeFile(wish.to, text)
  } catch (error) {
    throw new WeftError('PERMISSION', `cannot write ${wish.to}: ${messageOf(error)}`, {
      remedy: 'name another file with -d',
      cause: error,
    })
  }
  for (const net of [parseIpv4Net(env['FLANNEL_SUBNET'] ?? ''), parseIpv6Net(env['FLANNEL_IPV6_SUBNET'] ?? '')])
    if (net) await refuseRouted(net, kernel)
}

async function refuseRouted(subnet: Net, kernel: HostKernel): Promise<void> {
  const routes = await kernel.routes({ family: familyOf(subnet), exactly: [subnet] })
  const route = routes.find(({ gateway, isMultipath }) => gateway !== undefined || isMultipath)
  if (!route) return
  const { destination, gateway = 'several gateways', device } = route
  throw new WeftError(
    'ADDRESS',
    `Your routing table already contains the subnet: ${destination} via ${gateway} dev ${device}`,
    { remedy: `remove that route, else Docker cannot use ${formatNet(subnet)}` },
  )
}

function readArguments(args: readonly string[]) {
  try {
    const { values } = parseArgs({
      args: [...args],
      options: {
        from: { type: 'string', short: 'f', default: '/run/flannel/subnet.env' },
        to: { type: 'string', short: 'd', default: '/run/docker_opts.env' },
        individual: { type: 'boolean', short: 'i', default: false },
        combined: { type: 'boolean', short: 'c', default: false },
        'no-ip-masq': { type: 'boolean', short: 'm', default: false },
        key: { type: 'string', short: 'k', default: 'DOCKER_OPTS' },
      },
    })
    const both = values.individual === values.combined
    return {
      from: values.from,
      to: values.to,
      individual: values.individual || both,
      combined: values.combined || both,
      key: values.key,
      ipMasq: !values['no-ip-masq'],
    }
  } catch (error) {
    throw new WeftError('USAGE', messageOf(error), { remedy: 'see weft docker-opts -h', cause: error })
  }
}

/** Reads a file. Returns an empty text if the file does not exist, because flannel's script accepts a missing file. */
async function readIfThere(path: string): Promise<string> {
  try {
    return await readFile(path, 'utf8')
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code === 'ENOENT') return ''
    throw new WeftError('PERMISSION', `cannot read ${path}: ${messageOf(error)}`, {
      remedy: 'name another file with -f',
      cause: error,
    })
  }
}

/** Returns the subnet for Docker's option --fixed-cidr-v6. Throws WeftError USAGE if the subnet is invalid. */
function fixedCidrOf(subnet: string): string {
  const net = parseIpv6Net(subnet)
  if (net) return formatNet(net)
  throw new WeftError('USAGE', `Invalid value of FLANNEL_IPV6_SUBNET: ${subnet}`, {
    remedy: 'write a subnet such as fd00:5:1::1/64',
  })
}

interface DockerOptsWish {
  /** True to write a separate variable for each of Docker's options. */
  readonly individual: boolean
  /** True to write all of Docker's options in one variable. */
  readonly combined: boolean
  readonly key: string
  readonly ipMasq: boolean
}

const PREFIX = 'DOCKER_OPT_'

/**
 * Formats the file with Docker's options from the variables of subnet.env. A missing variable gives no option.
 * DOCKER_OPT_* variables of the environment become options too, and options in the combined variable of the environment
 * are kept before the new options, with two spaces after them as in flannel's script. The options switch Docker's
 * masquerading on only if flannel does not masquerade. Throws WeftError USAGE if FLANNEL_IPMASQ is neither true nor
 * false.
 */
function formatDockerOpts(env: Readonly<Record<string, string | undefined>>, wish: DockerOptsWish): string {
  const given = Object.entries(env).filter(([name]) => name.startsWith(PREFIX))
  const options = new Map(given.map(([name, option = '']) => [name.slice(PREFIX.length), option]))
  const { FLANNEL_SUBNET: subnet, FLANNEL_IPV6_SUBNET: subnet6, FLANNEL_IPMASQ: masq, FLANNEL_MTU: mtu } = env
  if (subnet) options.set('BIP', `--bip=${subnet}`)
  if (subnet6) {
    options.set('FIXED_CIDR_V6', `--fixed-cidr-v6=${fixedCidrOf(subnet6)}`)
    options.set('IPV6', '--ipv6')
  }
  if (wish.ipMasq && masq) {
    if (masq !== 'true' && masq !== 'false') {
      throw new WeftError('USAGE', `Invalid value of FLANNEL_IPMASQ: ${masq}`, { remedy: 'write true or false' })
    }
    options.set('IPMASQ', `--ip-masq=${masq === 'false'}`)
  }
  if (mtu) options.set('MTU', `--mtu=${mtu}`)
  const sorted = [...options].toSorted(([a], [b]) => (a < b ? -1 : 1))
  const lines: string[] = []
  if (wish.individual) for (const [name, option] of sorted) lines.push(`${PREFIX}${name}="${option}"`)
  if (wish.combined) {
    const kept = env[wish.key] ? `${env[wish.key]} ` : ''
    lines.push(`${wish.key}="${kept}${sorted.map(([, option]) => ` ${option}`).join('')}"`)
  }
  return lines.map((line) => `${line}\n`).join('')
}
