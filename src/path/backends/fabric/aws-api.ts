// aws-api.ts - calls the Query API of EC2 with signed requests.

import { WeftError } from '../../../base/errors.ts'
import { actionRefusal, whereOf, type ApiClient } from './api-client.ts'
import { awsKeys, type ExpiringKeys } from './aws-credentials.ts'
import { signV4 } from './sigv4.ts'
import { elementsAt, textAt, tryXml, type XmlElement } from './xml.ts'

const API_VERSION = '2016-11-15'
/** The maximum number of pages of one answer that weftd reads. */
const MOST_PAGES = 100

/** The remedies for EC2's error codes whose cause an operator can correct. */
const REMEDIES: Readonly<Record<string, string>> = {
  UnauthorizedOperation: 'give the role of the instance the permissions in docs/cloud.md',
  AuthFailure: 'check the keys of AWS and the clock of this host',
  RequestExpired: 'set the clock of this host, or renew the keys of AWS if they are temporary',
  InvalidClientTokenId: 'check the keys of AWS',
  SignatureDoesNotMatch: 'check the secret key of AWS',
  RouteLimitExceeded: 'request a higher quota of routes for each route table, or take a backend that has a tunnel',
  'InvalidRouteTableID.NotFound': 'correct RouteTableID in Backend; the table must be in the region of the instance',
}

interface AwsApiOptions {
  readonly client: ApiClient
  readonly environment: Readonly<Record<string, string | undefined>>
  readonly region: string
  readonly endpoint: string
  /** Returns the URL of AWS's Security Token Service (STS), which gives access keys for the token of a web identity. */
  readonly stsUrl: () => string
  /** The URL of the EC2 instance metadata server. */
  readonly metadata: string
}

export class AwsApi {
  #keys: ExpiringKeys | undefined
  readonly #options: AwsApiOptions

  constructor(options: AwsApiOptions) {
    this.#options = options
  }

  /**
   * Calls an action of the API. Returns the answer, or the error's code if the code is one of `expected`. Throws
   * WeftError FABRIC for every other error.
   */
  async call(
    action: string,
    parameters: Readonly<Record<string, string>>,
    signal: AbortSignal,
    expected: readonly string[] = [],
  ): Promise<XmlElement | string> {
    const { client, environment, region, endpoint, stsUrl, metadata } = this.#options
    if (!this.#keys || Date.now() >= this.#keys.until)
      this.#keys = await awsKeys({ environment, client, stsUrl, metadata }, signal)
    const body = String(new URLSearchParams({ Action: action, Version: API_VERSION, ...parameters }))
    const headers = { 'content-type': 'application/x-www-form-urlencoded; charset=utf-8' }
    const request = { method: 'POST', url: endpoint, headers, body }
    const signed = { ...request, headers: signV4(request, this.#keys.keys, region, 'ec2', Date.now()) }
    const answer = await client.send(signed, signal)
    const root = tryXml(answer.text)
    if (answer.status === 200 && root) return root
    const code = root ? textAt(root, 'Errors/Error/Code') : ''
    if (expected.includes(code)) return code
    const message = root ? textAt(root, 'Errors/Error/Message') : undefined
    throw actionRefusal(signed, answer, action, { code, message }, REMEDIES)
  }

  /** Calls an action of the API, and returns the XML elements at `path` from all pages of the answer. */
  async pages(
    action: string,
    parameters: Readonly<Record<string, string>>,
    path: string,
    signal: AbortSignal,
  ): Promise<readonly XmlElement[]> {
    const items: XmlElement[] = []
    let token = ''
    for (let page = 0; page < MOST_PAGES; page++) {
      const more: Record<string, string> = token === '' ? {} : { NextToken: token }
      const answer = await this.call(action, { ...parameters, ...more }, signal)
      if (typeof answer === 'string') break
      items.push(...elementsAt(answer, path))
      token = textAt(answer, 'nextToken')
      if (token === '') return items
    }
    throw new WeftError(
      'FABRIC',
      `${whereOf({ method: 'POST', url: this.#options.endpoint })}: ${action} has no last page`,
    )
  }
}
