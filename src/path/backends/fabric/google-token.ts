// google-token.ts - finds an access token for Google's APIs in the same places as Google's own tools: a key file, or
// the metadata server.

import { createSign } from 'node:crypto'
import { readFile } from 'node:fs/promises'
import { messageOf, WeftError } from '../../../base/errors.ts'
import { jsonOf, refusalOf, type ApiClient } from './api-client.ts'
import { readMetadataJson } from './metadata.ts'

const SCOPE = 'https://www.googleapis.com/auth/compute'
const GRANT = 'urn:ietf:params:oauth:grant-type:jwt-bearer'
/** weftd renews a token EARLY_MS milliseconds before it expires. */
const EARLY_MS = 120_000
/** The lifetime, in seconds, of the token that weftd requests; Google allows at most one hour. */
const LIFETIME_S = 3600

/** An access token, and the time in ms since 1970 from which weftd must request a new token. */
export interface GoogleToken {
  readonly token: string
  readonly until: number
}

/**
 * Returns an access token for Google's APIs. `base` is the URL of the metadata server. Throws WeftError CONFIG if a key
 * file cannot be used.
 */
export async function googleToken(
  environment: Readonly<Record<string, string | undefined>>,
  client: ApiClient,
  base: string,
  signal: AbortSignal,
): Promise<GoogleToken> {
  const path = environment['GOOGLE_APPLICATION_CREDENTIALS'] ?? ''
  const answer =
    path === ''
      ? await readMetadataJson(
          client,
          `${base}/computeMetadata/v1/instance/service-accounts/default/token`,
          { 'metadata-flavor': 'Google' },
          signal,
        )
      : await exchange(await assertionOf(path), client, signal)
  const { access_token: token, expires_in: seconds } = answer
  if (typeof token !== 'string')
    throw new WeftError('FABRIC', "the answer of Google's token server has no token", {
      remedy: 'give the instance a service account',
    })
  return { token, until: Date.now() + Number(seconds ?? 0) * 1000 - EARLY_MS }
}

interface Assertion {
  readonly tokenUri: string
  readonly text: string
}

/** Signs a request for an access token with the key file of a service account (RFC 7523, RS256). */
async function assertionOf(path: string): Promise<Assertion> {
  try {
    const file = JSON.parse(await readFile(path, 'utf8')) as Record<string, unknown>
    const { type, client_email: email, private_key: key, token_uri: tokenUri } = file
    if (type !== 'service_account' || typeof key !== 'string' || typeof tokenUri !== 'string')
      throw new Error('it is no key of a service account')
    const now = Math.floor(Date.now() / 1000)
    const part = (value: object): string => Buffer.from(JSON.stringify(value)).toString('base64url')
    const claims = { iss: email, scope: SCOPE, aud: tokenUri, iat: now, exp: now + LIFETIME_S }
    const unsigned = `${part({ alg: 'RS256', typ: 'JWT' })}.${part(claims)}`
    const signature = createSign('RSA-SHA256').update(unsigned).sign(key).toString('base64url')
    return { tokenUri, text: `${unsigned}.${signature}` }
  } catch (error) {
    // JSON.parse quotes the text around a mistake. The quoted text may be a part of the key, so it must not be in the
    // message.
    const why = error instanceof SyntaxError ? 'it is not JSON' : messageOf(error)
    throw new WeftError('CONFIG', `cannot use the file of GOOGLE_APPLICATION_CREDENTIALS: ${why}`, {
      remedy:
        'mount the key file of a service account at that path, or leave the variable out on an instance with a service account',
    })
  }
}

async function exchange({ tokenUri, text }: Assertion, client: ApiClient, signal: AbortSignal) {
  const request = {
    method: 'POST',
    url: tokenUri,
    headers: { 'content-type': 'application/x-www-form-urlencoded' },
    body: String(new URLSearchParams({ grant_type: GRANT, assertion: text })),
  }
  const answer = await client.send(request, signal)
  if (answer.status !== 200)
    throw refusalOf(
      request,
      answer,
      '',
      'the token server refused the key',
      'check the key file, and the clock of this host',
    )
  return jsonOf(request, answer)
}
