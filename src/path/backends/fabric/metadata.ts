// metadata.ts - reads the metadata server of a cloud, from which an instance learns its own identity and credentials.

import { isWeftError, messageOf, WeftError } from '../../../base/errors.ts'
import { refusalOf, type ApiAnswer, type ApiClient, type ApiRequest } from './api-client.ts'

const REMEDY = 'run weftd on an instance of that cloud, with access to its metadata server'

/** Sends a request to the metadata server. Adds a remedy to the error if the server does not answer. */
async function send(client: ApiClient, request: ApiRequest, signal: AbortSignal): Promise<ApiAnswer> {
  try {
    return await client.send(request, signal)
  } catch (error) {
    if (signal.aborted || !isWeftError(error)) throw error
    throw new WeftError('FABRIC', messageOf(error), { remedy: REMEDY, cause: error })
  }
}

/**
 * Returns the text at a path of the metadata server. Throws WeftError FABRIC if the server does not answer, or has no
 * text at this path.
 */
export async function readMetadata(
  client: ApiClient,
  url: string,
  headers: Readonly<Record<string, string>>,
  signal: AbortSignal,
): Promise<string> {
  const request = { method: 'GET', url, headers }
  const answer = await send(client, request, signal)
  if (answer.status !== 200) throw refusalOf(request, answer, '', 'the metadata server refused', REMEDY)
  return answer.text.trim()
}

/** How long a token from the metadata server is valid, in seconds. */
const TOKEN_S = 300

/**
 * Requests a token from the metadata server, and returns the headers that further requests to that server need. `name`
 * is the name of the header with the token. Returns undefined if the server gives no tokens. The protocol is AWS's
 * IMDSv2, which Alibaba Cloud's metadata server also supports ("security hardening mode").
 */
export async function tokenHeaders(
  client: ApiClient,
  base: string,
  name: string,
  signal: AbortSignal,
): Promise<Readonly<Record<string, string>> | undefined> {
  const headers = { [`${name}-ttl-seconds`]: String(TOKEN_S) }
  const { status, text } = await send(client, { method: 'PUT', url: `${base}/latest/api/token`, headers }, signal)
  return status === 200 ? { [name]: text.trim() } : undefined
}

/**
 * Returns the first line of the text at a path of the metadata server, such as the name of the instance's role;
 * undefined if the server has no text at this path. Throws WeftError FABRIC if the server does not answer.
 */
export async function findMetadata(
  client: ApiClient,
  url: string,
  headers: Readonly<Record<string, string>>,
  signal: AbortSignal,
): Promise<string | undefined> {
  const request = { method: 'GET', url, headers }
  const answer = await send(client, request, signal)
  if (answer.status === 404) return undefined
  if (answer.status !== 200) throw refusalOf(request, answer, '', 'the metadata server refused', REMEDY)
  const [first = ''] = answer.text.trim().split('\n')
  return first === '' ? undefined : first
}

/**
 * Returns a name that the metadata server gave, and that becomes a part of the host name in a URL. Throws WeftError
 * FABRIC if the name has characters besides letters, digits and hyphens. A name with dots could send requests with
 * credentials to another host, such as a customer's bucket in the cloud's domain.
 */
export function requireHostName(what: string, name: string): string {
  if (/^[a-z\d-]+$/i.test(name)) return name
  throw new WeftError('FABRIC', `the metadata server names ${what} ${JSON.stringify(name.slice(0, 100))}`, {
    remedy: REMEDY,
  })
}

/**
 * Returns the JSON object at a path of the metadata server. Throws WeftError FABRIC if the answer is not a JSON object.
 */
export async function readMetadataJson(
  client: ApiClient,
  url: string,
  headers: Readonly<Record<string, string>>,
  signal: AbortSignal,
): Promise<Readonly<Record<string, unknown>>> {
  const text = await readMetadata(client, url, headers, signal)
  try {
    const value: unknown = JSON.parse(text)
    if (typeof value === 'object' && value !== null) return value as Record<string, unknown>
  } catch {
    // Do not quote the syntax error: it contains a part of the answer, which may be a key.
  }
  throw new WeftError('FABRIC', `GET ${new URL(url).host}: the metadata server's answer is not JSON`)
}
