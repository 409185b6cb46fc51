// metadata.ts - reads the metadata server of a cloud, from which an instance learns its own identity and credentials.

import { WeftError } from '../../../base/errors.ts'
import { refusalOf, type ApiClient } from './api-client.ts'

const REMEDY = 'run weftd on an instance of that cloud, with access to its metadata server'

/**
 * Returns the text at a path of the metadata server. Throws WeftError FABRIC if the server does not answer, or has
 * nothing at this path.
 */
export async function readMetadata(
  client: ApiClient,
  url: string,
  headers: Readonly<Record<string, string>>,
  signal: AbortSignal,
  method = 'GET',
): Promise<string> {
  const request = { method, url, headers }
  const answer = await client.send(request, signal)
  if (answer.status !== 200) throw refusalOf(request, answer, '', 'the metadata server refused', REMEDY)
  return answer.text.trim()
}

/** Returns the JSON object at a path of the metadata server; undefined if the server has nothing at this path. */
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
    // Ignore the syntax error. The error below reports it without quoting the text, which may contain a key.
  }
  throw new WeftError('FABRIC', `GET ${new URL(url).host}: the metadata server's answer is not JSON`)
}
