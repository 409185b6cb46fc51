// aws-credentials.ts - finds the access keys for AWS in the same places as AWS's own tools: environment, shared file,
// metadata server.

import { readFile } from 'node:fs/promises'
import { homedir } from 'node:os'
import { join } from 'node:path'
import { WeftError } from '../../../base/errors.ts'
import type { ApiClient } from './api-client.ts'
import { readMetadata, readMetadataJson } from './metadata.ts'
import type { AwsKeys } from './sigv4.ts'

type Environment = Readonly<Record<string, string | undefined>>

/** How long a token from the metadata server is valid, in seconds. */
const TOKEN_S = 300
/** weftd renews access keys this number of ms before they expire. */
const EARLY_MS = 300_000

export interface ExpiringKeys {
  readonly keys: AwsKeys
  /** The time, in ms since 1970, from which the access keys must be read again. */
  readonly until: number
}

/** Requests a token of the metadata server, and returns the headers for further requests to it (IMDSv2). */
export async function imdsHeaders(client: ApiClient, base: string, signal: AbortSignal) {
  const headers = { 'x-aws-ec2-metadata-token-ttl-seconds': String(TOKEN_S) }
  const token = await readMetadata(client, `${base}/latest/api/token`, headers, signal, 'PUT')
  return { 'x-aws-ec2-metadata-token': token }
}

/**
 * Returns the access keys from the first place that has them. Throws WeftError CONFIG if no place has keys. `base` is
 * the URL of the metadata server.
 */
export async function awsKeys(
  environment: Environment,
  client: ApiClient,
  base: string,
  signal: AbortSignal,
): Promise<ExpiringKeys> {
  const { AWS_ACCESS_KEY_ID: id = '', AWS_SECRET_ACCESS_KEY: secret = '' } = environment
  // AWS_SECURITY_TOKEN is the older name of the variable, which flannel's documentation named.
  const token = environment['AWS_SESSION_TOKEN'] ?? environment['AWS_SECURITY_TOKEN']
  if (id !== '' && secret !== '')
    return { keys: { accessKeyId: id, secretAccessKey: secret, sessionToken: token }, until: Infinity }
  const shared = await sharedKeys(environment)
  if (shared) return { keys: shared, until: Infinity }
  return roleKeys(client, base, signal)
}

async function sharedKeys(environment: Environment): Promise<AwsKeys | undefined> {
  const path = environment['AWS_SHARED_CREDENTIALS_FILE'] ?? join(homedir(), '.aws/credentials')
  const text = await readFile(path, 'utf8').catch(() => '')
  const members = profileOf(text, environment['AWS_PROFILE'] ?? 'default')
  const [accessKeyId, secretAccessKey] = [members.get('aws_access_key_id'), members.get('aws_secret_access_key')]
  if (accessKeyId === undefined || secretAccessKey === undefined) return undefined
  return { accessKeyId, secretAccessKey, sessionToken: members.get('aws_session_token') }
}

/** Reads one profile of AWS's shared credentials file, which has the form of an INI file. */
function profileOf(text: string, profile: string): ReadonlyMap<string, string> {
  const members = new Map<string, string>()
  let section = ''
  for (const line of text.split('\n')) {
    const [, name] = /^\s*\[\s*(.*?)\s*\]/.exec(line) ?? []
    if (name !== undefined) section = name
    const [, key, value] = /^\s*([\w-]+)\s*=\s*(.*?)\s*$/.exec(line) ?? []
    if (section === profile && key !== undefined && value !== undefined) members.set(key, value)
  }
  return members
}

async function roleKeys(client: ApiClient, base: string, signal: AbortSignal): Promise<ExpiringKeys> {
  const headers = await imdsHeaders(client, base, signal)
  const folder = `${base}/latest/meta-data/iam/security-credentials/`
  const none = (): never => {
    throw new WeftError('CONFIG', 'there are no keys of AWS', {
      remedy:
        'give the instance an IAM role, or set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY in the environment of weftd',
    })
  }
  const role = await readMetadata(client, folder, headers, signal).catch(none)
  const value = await readMetadataJson(
    client,
    `${folder}${encodeURIComponent(role.split('\n')[0] ?? '')}`,
    headers,
    signal,
  )
  const { AccessKeyId: id, SecretAccessKey: secret, Token: token, Expiration: end } = value
  if (typeof id !== 'string' || typeof secret !== 'string') return none()
  const keys = {
    accessKeyId: id,
    secretAccessKey: secret,
    ...(typeof token === 'string' ? { sessionToken: token } : {}),
  }
  return { keys, until: typeof end === 'string' ? Date.parse(end) - EARLY_MS : Date.now() + EARLY_MS }
}
