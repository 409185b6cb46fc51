// publisher.ts - the interface of a publisher: it calls the API of a cloud or a switch, and writes the route to this
// node's subnet into the API's route tables.

import type { Log } from '../../../base/log.ts'
import type { Address, Net } from '../../../net/address.ts'
import type { ApiClient } from './api-client.ts'

export interface FabricRoute {
  readonly destination: string
  /** The target of the route in the words of the API, for log lines. */
  readonly target: string
  /** True if the route leads to this node. */
  readonly isOwn: boolean
  /**
   * `dead` means that the API keeps the route but forwards no packet along it, for example because the route's target
   * was deleted.
   */
  readonly state: 'active' | 'pending' | 'dead'
  /** The route's id in the API, if the API needs an id to delete the route. */
  readonly id?: string
}

export interface RouteTable {
  /** The name of the table for log lines, such as `rtb-1`. */
  readonly name: string
  /**
   * The maximum number of routes in the table, as the API or its documentation states it; left out if it is not known.
   */
  readonly limit?: number | undefined
  /** Lists all routes of the table, from all pages of the answer. */
  list(signal: AbortSignal): Promise<readonly FabricRoute[]>
  /**
   * Adds the route to this node's subnet. Returns `exists` if the API refused the route because it already has a route
   * to that subnet.
   */
  put(signal: AbortSignal): Promise<'made' | 'exists'>
  /** Removes one route of the table. Succeeds if the route does not exist. */
  remove(route: FabricRoute, signal: AbortSignal): Promise<void>
  /**
   * True if the API cannot list its routes. In that case `list` returns this node's route, and each check adds the
   * route again.
   */
  readonly isBlind?: boolean
}

/**
 * Calls the API of a cloud or a switch. All functions throw WeftError FABRIC if the API refuses or does not answer, and
 * CONFIG if an operator must act.
 */
export interface Publisher {
  /**
   * Finds this node's instance and its route tables. weftd calls `find` before all other functions. After a failure
   * weftd makes a new publisher and calls its `find`.
   */
  find(signal: AbortSignal): Promise<readonly RouteTable[]>
}

/** The facts about this node that a publisher gets. */
export interface Place {
  readonly subnet: Net
  readonly address: Address
  /** The public IP that this node publishes in its lease. */
  readonly publicIp: Address
  readonly nodeName: string
  readonly environment: Readonly<Record<string, string | undefined>>
  readonly client: ApiClient
  readonly log: Log
}

export type MakePublisher = (place: Place) => Publisher
