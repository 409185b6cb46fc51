// aws-credentials.ts - finds the access keys for AWS in the same places as AWS's own tools: environment, shared file,
// web identity, container, metadata server.

import { readFile } from 'node:fs/promises'
import { homedir } from 'node:os'
import { join } from 'node:path'
import { WeftError } from '../../../base/errors.ts'
import type { ApiClient } from './api-client.ts'
import { containerKeys, webIdentityKeys, type JsonKeys } from './aws-role-keys.ts'
import { findMetadata, readMetadataJson, tokenHeaders } from './metadata.ts'
import type { AwsKeys } from './sigv4.ts'

type Environment = Readonly<Record<string, string | undefined>>

/** weftd renews access keys EARLY_MS milliseconds before they expire. */
const EARLY_MS = 300_000

export interface ExpiringKeys {
  readonly keys: AwsKeys
  /** The time, in ms since 1970, from which weftd must read the access keys again. */
  readonly until: number
}

/**
 * Requests a token from the metadata server, and returns the headers that further requests to that server need
 * (IMDSv2).
 */
export async function imdsHeaders(client: ApiClient, base: string, signal: AbortSignal) {
  const headers = await tokenHeaders(client, base, 'x-aws-ec2-metadata-token', signal)
  if (headers) return headers
  throw new WeftError('FABRIC', `the metadata server ${base} gives no token`, {
    remedy: "enable the instance's metadata service (IMDSv2)",
  })
}

/** The places in which weftd looks for access keys. */
interface AwsKeyPlaces {
  readonly environment: Environment
  readonly client: ApiClient
  /** Returns the URL of AWS's Security Token Service (STS), which gives access keys for the token of a web identity. */
  readonly stsUrl: () => string
  /** The URL of the EC2 instance metadata server. */
  readonly metadata: string
}

/**
 * Returns the access keys from the first place that has them, in the order of AWS's own tools. Throws WeftError CONFIG
 * if no place has keys.
 */
export async function awsKeys(
  { environment, client, stsUrl, metadata }: AwsKeyPlaces,
  signal: AbortSignal,
): Promise<ExpiringKeys> {
  const { AWS_ACCESS_KEY_ID: id = '', AWS_SECRET_ACCESS_KEY: secret = '' } = environment
  // flannel's documentation named AWS_SECURITY_TOKEN, the older name of AWS_SESSION_TOKEN. So accept both names.
  const token = environment['AWS_SESSION_TOKEN'] ?? environment['AWS_SECURITY_TOKEN']
  if (id !== '' && secret !== '')
    return { keys: { accessKeyId: id, secretAccessKey: secret, sessionToken: token }, until: Infinity }
  const shared = await sharedKeys(environment)
  if (shared) return { keys: shared, until: Infinity }
  const found =
    (await webIdentityKeys(environment, client, stsUrl, signal)) ??
    (await containerKeys(environment, client, signal)) ??
    (await instanceKeys(client, metadata, signal))
  return expiring(found)
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

/** Reads the access keys of the instance's role from the metadata server. */
async function instanceKeys(client: ApiClient, base: string, signal: AbortSignal): Promise<JsonKeys> {
  const headers = await imdsHeaders(client, base, signal)
  const folder = `${base}/latest/meta-data/iam/security-credentials/`
  const role = (await findMetadata(client, folder, headers, signal)) ?? none()
  return readMetadataJson(client, `${folder}${encodeURIComponent(role)}`, headers, signal)
}

function expiring({ AccessKeyId: id, SecretAccessKey: secret, Token: token, Expiration: end }: JsonKeys): ExpiringKeys {
  if (typeof id !== 'string' || typeof secret !== 'string') return none()
  const keys = {
    accessKeyId: id,
    secretAccessKey: secret,
    ...(typeof token === 'string' ? { sessionToken: token } : {}),
  }
  const at = typeof end === 'string' ? Date.parse(end) : Number.NaN
  return { keys, until: (Number.isFinite(at) ? at : Date.now() + 2 * EARLY_MS) - EARLY_MS }
}

function none(): never {
  throw new WeftError('CONFIG', 'there are no keys of AWS', {
    remedy:
      'give the instance an IAM role, or set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY in the environment of weftd',
  })
}
