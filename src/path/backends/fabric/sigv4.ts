// sigv4.ts - signs a request, including its headers and its body, by AWS Signature Version 4. Does no I/O.
//
// Source: "Create a signed AWS API request" in the IAM User Guide. The unit tests use vectors of AWS's published test
// suite.

import { createHash, createHmac } from 'node:crypto'

export interface AwsKeys {
  readonly accessKeyId: string
  readonly secretAccessKey: string
  readonly sessionToken?: string | undefined
}

interface SigV4Request {
  readonly method: string
  readonly url: string
  /** The headers to sign, with names in lower case; `signV4` adds `host` and `x-amz-date`. */
  readonly headers: Readonly<Record<string, string>>
  readonly body: string
}

const sha256 = (text: string): string => createHash('sha256').update(text).digest('hex')
const hmac = (key: string | Buffer, text: string): Buffer => createHmac('sha256', key).update(text).digest()
/** Percent-encodes a text as RFC 3986 requires, including some characters that encodeURIComponent does not encode. */
const encoded = (text: string): string =>
  encodeURIComponent(text).replaceAll(/[!'()*]/g, (letter) => `%${letter.charCodeAt(0).toString(16).toUpperCase()}`)

/** Compares two texts of ASCII characters by their character codes. */
const compare = (a: string, b: string): number => (a < b ? -1 : Number(a > b))

/**
 * Returns the given headers, and the headers that the signature adds to a request. `at` is the time of the signature in
 * ms since 1970.
 */
export function signV4(
  { method, url, headers: given, body }: SigV4Request,
  { accessKeyId, secretAccessKey, sessionToken }: AwsKeys,
  region: string,
  service: string,
  at: number,
): Record<string, string> {
  const { host, pathname, searchParams } = new URL(url)
  const time = new Date(at).toISOString().replaceAll(/[-:]|\.\d+/g, '')
  const day = time.slice(0, 8)
  const headers: Record<string, string> = {
    ...given,
    host,
    'x-amz-date': time,
    ...(sessionToken === undefined ? {} : { 'x-amz-security-token': sessionToken }),
  }
  const names = Object.keys(headers).toSorted()
  // The path of a URL is percent-encoded already. For the signature, every AWS service except S3 needs the path encoded
  // a second time.
  const path = service === 's3' ? pathname : pathname.split('/').map(encoded).join('/')
  // Sort by name and then by value. The order of the joined texts `name=value` would be wrong, because digits come
  // before the equals sign in ASCII.
  const query = [...searchParams]
    .map(([name, value]) => [encoded(name), encoded(value)] as const)
    .toSorted((a, b) => compare(a[0], b[0]) || compare(a[1], b[1]))
    .map(([name, value]) => `${name}=${value}`)
    .join('&')
  const canonicalHeaders = names.map((name) => `${name}:${(headers[name] ?? '').trim().replaceAll(/ +/g, ' ')}\n`)
  const canonical = [method, path, query, canonicalHeaders.join(''), names.join(';'), sha256(body)].join('\n')
  const scope = `${day}/${region}/${service}/aws4_request`
  const key = [region, service, 'aws4_request'].reduce<Buffer>(
    (before, part) => hmac(before, part),
    hmac(`AWS4${secretAccessKey}`, day),
  )
  const signature = hmac(key, ['AWS4-HMAC-SHA256', time, scope, sha256(canonical)].join('\n')).toString('hex')
  const credential = `Credential=${accessKeyId}/${scope}`
  const authorization = `AWS4-HMAC-SHA256 ${credential}, SignedHeaders=${names.join(';')}, Signature=${signature}`
  return { ...headers, authorization }
}
