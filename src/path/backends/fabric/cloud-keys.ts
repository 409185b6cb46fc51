// cloud-keys.ts - finds the access keys for Alibaba Cloud and Tencent Cloud: in the configuration, in the environment,
// or from the metadata server.

import { WeftError } from '../../../base/errors.ts'
import type { Secret } from '../../../base/secret.ts'
import type { ApiClient } from './api-client.ts'
import { readMetadata, readMetadataJson } from './metadata.ts'
import type { CloudKeys } from './tc3.ts'

/** weftd renews access keys this number of ms before they expire. */
const EARLY_MS = 300_000

type Names = readonly [id: string, secret: string, token?: string]

export interface CloudKeyPlaces {
  /** The name of the cloud for messages. */
  readonly cloud: string
  readonly environment: Readonly<Record<string, string | undefined>>
  /** The environment variables with access keys, in order of precedence. */
  readonly variables: readonly Names[]
  readonly client: ApiClient
  /** The URL of the metadata server that returns the role's name; the access keys are at a path below it. */
  readonly roleUrl: string
  /** The names of the members of the metadata server's answer that have the access keys. */
  readonly members: readonly [id: string, secret: string, token: string]
  /** Returns the time when the access keys expire, in ms since 1970, from the metadata server's answer. */
  readonly expires: (answer: Readonly<Record<string, unknown>>) => number
}

/** The access keys in the `Backend` object, which may be empty. */
export interface GivenKeys {
  readonly accessKeyId: Secret
  readonly accessKeySecret: Secret
}

/** Access keys, and the time in ms since 1970 from which they must be read again. */
export interface ExpiringCloudKeys {
  readonly keys: CloudKeys
  readonly until: number
}

/** Returns the access keys from the first place that has them. Throws WeftError CONFIG if no place has keys. */
export async function cloudKeys(
  { accessKeyId, accessKeySecret }: GivenKeys,
  places: CloudKeyPlaces,
  signal: AbortSignal,
): Promise<ExpiringCloudKeys> {
  const { environment, variables } = places
  if (!accessKeyId.isEmpty && !accessKeySecret.isEmpty)
    return { keys: { id: accessKeyId.reveal(), secret: accessKeySecret.reveal() }, until: Infinity }
  for (const [id, secret, token = ''] of variables) {
    const [givenId = '', givenSecret = ''] = [environment[id], environment[secret]]
    if (givenId !== '' && givenSecret !== '')
      return { keys: { id: givenId, secret: givenSecret, token: environment[token] }, until: Infinity }
  }
  return roleKeys(places, signal)
}

async function roleKeys(
  { cloud, client, roleUrl, variables, members, expires }: CloudKeyPlaces,
  signal: AbortSignal,
): Promise<ExpiringCloudKeys> {
  const none = (): never => {
    const [[id, secret] = ['', '']] = variables
    throw new WeftError('CONFIG', `there are no keys of ${cloud}: ${id} and ${secret} must be provided`, {
      remedy:
        'set the keys in the environment of weftd, give the instance a role, or set AccessKeyID and AccessKeySecret in Backend',
    })
  }
  const role = await readMetadata(client, roleUrl, {}, signal).catch(() => none())
  const answer = await readMetadataJson(
    client,
    `${roleUrl}${encodeURIComponent(role.split('\n')[0] ?? '')}`,
    {},
    signal,
  )
  const [id, secret, token] = members.map((name) => answer[name])
  if (typeof id !== 'string' || typeof secret !== 'string') return none()
  const end = expires(answer)
  const keys = { id, secret, ...(typeof token === 'string' ? { token } : {}) }
  return { keys, until: (Number.isFinite(end) ? end : Date.now() + 2 * EARLY_MS) - EARLY_MS }
}
