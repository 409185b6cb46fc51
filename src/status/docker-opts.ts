// docker-opts.ts - subnet.env as options for Docker's daemon: the output of flannel's mk-docker-opts.sh, byte for byte.

import { WeftError } from '../errors.ts'

export interface DockerOptsWish {
  /** One variable for each option. */
  readonly individual: boolean
  /** All options in one variable. */
  readonly combined: boolean
  /** The name of that variable. */
  readonly key: string
  /** Whether `--ip-masq` is among them. */
  readonly ipMasq: boolean
}

/**
 * The file's text for the variables of subnet.env; one that is missing gives no option. Docker masquerades exactly when
 * flannel does not. Throws WeftError USAGE for a FLANNEL_IPMASQ that is neither true nor false.
 */
export function formatDockerOpts(env: Readonly<Record<string, string | undefined>>, wish: DockerOptsWish): string {
  const options: [name: string, option: string][] = []
  const { FLANNEL_SUBNET: subnet, FLANNEL_IPMASQ: masq, FLANNEL_MTU: mtu } = env
  if (subnet) options.push(['BIP', `--bip=${subnet}`])
  if (wish.ipMasq && masq) {
    if (masq !== 'true' && masq !== 'false') {
      throw new WeftError('USAGE', `Invalid value of FLANNEL_IPMASQ: ${masq}`, { remedy: 'it is true or false' })
    }
    options.push(['IPMASQ', `--ip-masq=${masq === 'false'}`])
  }
  if (mtu) options.push(['MTU', `--mtu=${mtu}`])
  const lines: string[] = []
  if (wish.individual) for (const [name, option] of options) lines.push(`DOCKER_OPT_${name}="${option}"`)
  if (wish.combined) lines.push(`${wish.key}="${options.map(([, option]) => ` ${option}`).join('')}"`)
  return lines.map((line) => `${line}\n`).join('')
}
