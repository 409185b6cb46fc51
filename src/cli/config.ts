// config.ts - `weft config`: the network configuration in the store, shown, put, checked.

import { readFile } from 'node:fs/promises'
import { text as textOf } from 'node:stream/consumers'
import { checkBackend } from '../choose.ts'
import { withoutSecrets } from '../config/hidden.ts'
import { parseNetworkConfig, refuseIpv6, type Ipv4Config } from '../config/network-config.ts'
import { describeError, isWeftError, messageOf, WeftError } from '../errors.ts'
import { isCompatible } from '../lease/allocate.ts'
import { parseLeaseKey } from '../lease/lease.ts'
import { netText } from '../net/address.ts'
import { formatIpv4, formatIpv4Net, ipv4NetSize } from '../net/ipv4.ts'
import { jsonLine, printable, printableLines } from '../text.ts'
import { command, EXIT, JSON_FLAG, SOCKET_FLAG, STORE_FLAGS } from './command.ts'
import { count } from './look.ts'
import { withStore } from './store.ts'

const MORE = "Without flags of a store it is that of this host's daemon."
const flags = { ...SOCKET_FLAG, ...STORE_FLAGS }

export const configGetCommand = command({
  name: 'config get',
  does: 'print the network configuration that is in the store',
  more: `${MORE} A secret, such as a key of WireGuard, prints as <hidden>.`,
  flags: { 'show-secrets': { default: false, help: 'as it stands there, with its secrets' }, ...flags },
  run: ({ options, screen, signal: stopping }) =>
    withStore(options, screen, stopping, async ({ store, signal }) => {
      const text = await store.config(signal)
      screen.write(`${printableLines((options['show-secrets'] ? text : hidden(text)).trimEnd())}\n`)
      return EXIT.ok
    }),
})

/** Throws WeftError CONFIG for what is no JSON: nobody knows what of it is secret. */
function hidden(text: string): string {
  try {
    return withoutSecrets(text)
  } catch (error) {
    throw new WeftError('CONFIG', `the network configuration is not valid JSON: ${messageOf(error)}`, {
      remedy: 'see it as it stands with --show-secrets, and mend it',
    })
  }
}

/** Throws WeftError CONFIG for what no daemon would start with, or do all of. */
function check(text: string): Ipv4Config {
  const config = parseNetworkConfig(text)
  refuseIpv6(config)
  checkBackend(config)
  return config
}

/** `-` is standard input. Throws WeftError USAGE. */
async function readText(path: string): Promise<string> {
  try {
    return path === '-' ? await textOf(process.stdin) : await readFile(path, 'utf8')
  } catch (error) {
    throw new WeftError('USAGE', `${path} cannot be read: ${messageOf(error)}`, {
      remedy: 'name a file, or - for standard input',
    })
  }
}

export const configSetCommand = command({
  name: 'config set',
  args: 'FILE',
  does: 'check a network configuration and put it into the store',
  more: `FILE may be - for standard input. ${MORE} Daemons take it when they restart. One that leases would not fit is refused without --force.`,
  flags: {
    force: { default: false, help: 'also where leases do not fit it: their nodes get others when they restart' },
    ...flags,
  },
  async run({ options, args: [path = ''], screen, signal: stopping }) {
    const text = await readText(path)
    const config = check(text)
    return withStore(options, screen, stopping, async ({ store, signal }) => {
      const keys = (await store.list(signal)).entries.flatMap(({ key }) => parseLeaseKey(key) ?? [])
      const unfit = keys.filter(({ ipv4 }) => !ipv4 || !isCompatible(ipv4, config.ipv4))
      if (unfit.length > 0 && !options.force) {
        const [first] = unfit
        throw new WeftError(
          'CONFIG',
          `${count(unfit.length, 'lease')} would not fit it, such as ${first && netText(first)}`,
          {
            remedy: 'give --force when their nodes may get other subnets',
          },
        )
      }
      await store.setConfig(text.trimEnd(), signal)
      screen.write('put; daemons take it when they restart\n')
      return EXIT.ok
    })
  },
})

export const configCheckCommand = command({
  name: 'config check',
  args: '[FILE]',
  does: 'check the network configuration in the store, or in a file',
  more: `FILE may be - for standard input. ${MORE} Exits with 3 when it is not valid.`,
  flags: { ...JSON_FLAG, ...flags },
  async run({ options, args: [path], screen, signal: stopping }) {
    const judge = async (text: string): Promise<number> => {
      try {
        const { ipv4, backendType, backend } = check(text)
        const { network, subnetLength, subnetMin, subnetMax } = ipv4
        const nodes = (subnetMax - subnetMin) / ipv4NetSize(subnetLength) + 1
        const range = {
          network: formatIpv4Net(network),
          subnetLength,
          subnetMin: formatIpv4(subnetMin),
          subnetMax: formatIpv4(subnetMax),
        }
        if (options.json) screen.write(jsonLine({ valid: true, ...range, nodes, backendType, backend }))
        else {
          const { colour } = screen
          screen.write(
            `${colour('good', 'valid')}: ${range.network} in /${subnetLength}, ${range.subnetMin} to ${range.subnetMax}: ${count(nodes, 'node')}; ${printable(backendType)}\n`,
          )
        }
        return EXIT.ok
      } catch (error) {
        if (!isWeftError(error, 'CONFIG')) throw error
        if (options.json) screen.write(jsonLine({ valid: false, problem: describeError(error) }))
        else screen.write(`${screen.colour('bad', 'not valid')}: ${printable(describeError(error))}\n`)
        return EXIT.wrong
      }
    }
    if (path !== undefined) return judge(await readText(path))
    return withStore(options, screen, stopping, async ({ store, signal }) => judge(await store.config(signal)))
  },
})
