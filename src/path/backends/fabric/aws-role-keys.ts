// aws-role-keys.ts - gets the temporary access keys of an AWS role for a container: by a web identity (IRSA), or from
// the credentials server of the container (EKS Pod Identity, ECS).
//
// Sources: "AssumeRoleWithWebIdentity" in the STS API Reference, and "Container credential provider" in the AWS SDKs
// and Tools Reference Guide.

import { readFile } from 'node:fs/promises'
import { isWeftError, messageOf, WeftError } from '../../../base/errors.ts'
import { hideIn, refusalOf, type ApiClient } from './api-client.ts'
import { readMetadataJson } from './metadata.ts'
import { elementsAt, textAt, tryXml } from './xml.ts'

type Environment = Readonly<Record<string, string | undefined>>
/** Access keys as a JSON object, with the member names that AWS's servers use. */
export type JsonKeys = Readonly<Record<string, unknown>>

const STS_VERSION = '2011-06-15'
/** The URL of the credentials server of Amazon ECS. */
const CONTAINER_SERVER = 'http://169.254.170.2'
/**
 * The hosts to which weftd may send a container's token over http: the credentials servers of ECS and EKS, and this
 * host.
 */
const CONTAINER_HOSTS = new Set(['169.254.170.2', '169.254.170.23', '[fd00:ec2::23]', 'localhost', '[::1]'])

/**
 * Exchanges the token of a web identity for access keys. Returns undefined if the environment names no web identity.
 */
export async function webIdentityKeys(
  environment: Environment,
  client: ApiClient,
  stsUrl: () => string,
  signal: AbortSignal,
): Promise<JsonKeys | undefined> {
  const { AWS_WEB_IDENTITY_TOKEN_FILE: path = '', AWS_ROLE_ARN: role = '' } = environment
  if (path === '' || role === '') return undefined
  const token = await readToken('AWS_WEB_IDENTITY_TOKEN_FILE', path)
  const form = {
    Action: 'AssumeRoleWithWebIdentity',
    Version: STS_VERSION,
    RoleArn: role,
    RoleSessionName: environment['AWS_ROLE_SESSION_NAME'] ?? 'weft',
    WebIdentityToken: token,
  }
  const headers = { 'content-type': 'application/x-www-form-urlencoded; charset=utf-8' }
  const request = { method: 'POST', url: new URL(stsUrl()).href, headers, body: String(new URLSearchParams(form)) }
  const answer = await client.send(request, signal)
  const root = tryXml(answer.text)
  const [found] = root ? elementsAt(root, 'AssumeRoleWithWebIdentityResult/Credentials') : []
  if (answer.status === 200 && found)
    return Object.fromEntries(
      [
        ['AccessKeyId', 'AccessKeyId'],
        ['SecretAccessKey', 'SecretAccessKey'],
        ['Token', 'SessionToken'],
        ['Expiration', 'Expiration'],
      ].map(([name = '', element = '']) => [name, textAt(found, element)]),
    )
  const code = hideIn(root ? textAt(root, 'Error/Code') : '', [token])
  const message = hideIn(root ? textAt(root, 'Error/Message') : answer.text.trim(), [token])
  throw refusalOf(
    request,
    answer,
    `${form.Action}: ${code}`,
    message,
    'check AWS_ROLE_ARN and the trust policy of the role',
  )
}

/**
 * Reads access keys from the credentials server of the container. Returns undefined if the environment names no such
 * server.
 */
export async function containerKeys(
  environment: Environment,
  client: ApiClient,
  signal: AbortSignal,
): Promise<JsonKeys | undefined> {
  const path = environment['AWS_CONTAINER_CREDENTIALS_RELATIVE_URI'] ?? ''
  const full = environment['AWS_CONTAINER_CREDENTIALS_FULL_URI'] ?? ''
  if (path === '' && full === '') return undefined
  const url = path === '' ? full : `${CONTAINER_SERVER}/${path.replace(/^\//, '')}`
  const { protocol, hostname } = URL.canParse(url) ? new URL(url) : { protocol: '', hostname: '' }
  const isNear = CONTAINER_HOSTS.has(hostname) || /^127\.[\d.]+$/.test(hostname)
  if (protocol !== 'https:' && !(protocol === 'http:' && isNear))
    throw new WeftError('CONFIG', 'AWS_CONTAINER_CREDENTIALS_FULL_URI names no server of this host, of ECS or of EKS', {
      remedy: 'give the variable an https URL, or an http URL of a server of this host, of ECS or of EKS',
    })
  const file = environment['AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE'] ?? ''
  const token =
    file === ''
      ? environment['AWS_CONTAINER_AUTHORIZATION_TOKEN']
      : await readToken('AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE', file)
  try {
    return await readMetadataJson(client, url, token === undefined ? {} : { authorization: token }, signal)
  } catch (error) {
    if (signal.aborted || !isWeftError(error)) throw error
    // Remove the URL's path from the message, because on ECS any process of the host that knows the path gets the keys.
    throw new WeftError('FABRIC', hideIn(error.message, [new URL(url).pathname]), {
      remedy: 'check the variables AWS_CONTAINER_CREDENTIALS_... and AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE',
    })
  }
}

async function readToken(variable: string, path: string): Promise<string> {
  try {
    return (await readFile(path, 'utf8')).trim()
  } catch (error) {
    throw new WeftError('CONFIG', `cannot read the file of ${variable}: ${messageOf(error)}`, {
      remedy: 'mount the file at the path that the variable gives',
    })
  }
}
