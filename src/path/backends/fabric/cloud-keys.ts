// cloud-keys.ts - finds the access keys for Alibaba Cloud and Tencent Cloud: in the configuration, in the environment,
// or from the metadata server.

import { WeftError } from '../../../base/errors.ts'
import type { Secret } from '../../../base/secret.ts'
import type { ApiClient } from './api-client.ts'
import { findMetadata, readMetadataJson } from './metadata.ts'
import type { CloudKeys } from './tc3.ts'

/** weftd renews access keys EARLY_MS milliseconds before they expire. */
const EARLY_MS = 300_000

type Names = readonly [id: string, secret: string, token?: string]

export interface CloudKeyPlaces {
  /** The name of the cloud for messages. */
  readonly cloud: string
  readonly environment: Readonly<Record<string, string | undefined>>
  /** The environment variables with access keys, in order of precedence. */
  readonly variables: readonly Names[]
  readonly client: ApiClient
  /**
   * The URL at which the metadata server returns the name of the instance's role. The path of the access keys is this
   * URL with the role's name appended.
   */
  readonly roleUrl: string
  /** Returns the headers of requests to the metadata server. */
  readonly roleHeaders?: (signal: AbortSignal) => Promise<Readonly<Record<string, string>>>
  /** The names of the JSON members that hold the access keys in the metadata server's answer. */
  readonly members: readonly [id: string, secret: string, token: string]
  /** Returns the time when the access keys expire, in ms since 1970, from the metadata server's answer. */
  readonly expires: (answer: Readonly<Record<string, unknown>>) => number
}

/** The access keys in the `Backend` object of the network configuration; empty if not configured. */
export interface GivenKeys {
  readonly accessKeyId: Secret
  readonly accessKeySecret: Secret
}

/** Access keys, and the time in ms since 1970 from which weftd must read them again. */
export interface ExpiringCloudKeys {
  readonly keys: CloudKeys
  readonly until: number
}

/**
 * Returns the access keys from the configuration, else from the environment, else from the metadata server. Throws
 * WeftError CONFIG if none of these places has keys.
 */
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
  { cloud, client, roleUrl, roleHeaders, variables, members, expires }: CloudKeyPlaces,
  signal: AbortSignal,
): Promise<ExpiringCloudKeys> {
  const none = (): never => {
    const [[id, secret] = ['', '']] = variables
    throw new WeftError('CONFIG', `there are no keys of ${cloud}: ${id} and ${secret} must be provided`, {
      remedy:
        'set the keys in the environment of weftd, give the instance a role, or set AccessKeyID and AccessKeySecret in Backend',
    })
  }
  const headers = (await roleHeaders?.(signal)) ?? {}
  const role = (await findMetadata(client, roleUrl, headers, signal)) ?? none()
  const answer = await readMetadataJson(client, `${roleUrl}${encodeURIComponent(role)}`, headers, signal)
  const [id, secret, token] = members.map((name) => answer[name])
  if (typeof id !== 'string' || typeof secret !== 'string') return none()
  const end = expires(answer)
  const keys = { id, secret, ...(typeof token === 'string' ? { token } : {}) }
  return { keys, until: (Number.isFinite(end) ? end : Date.now() + 2 * EARLY_MS) - EARLY_MS }
}
